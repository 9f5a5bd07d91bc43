"""What an earlier step was planned from, and whether all of it is still so.

Outlines are kept for the next step, but every step reads again what they depend on: which parameters and states there
are, which parameters have gradients, and the type, device, shape and strides of every tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ingot.declare.spec import Variant
from ingot.step.facts import Facts, find_facts
from ingot.step.survey import AllSlots, Found, Outline
from ingot.storage.counts import MOST_STEPS
from ingot.storage.precision import Precision

Surveyed = list[tuple[Outline, Found]]


@dataclass(frozen=True)
class Settings:
    """What outlines depend on apart from the tensors."""

    # Whether each parameter has a gradient; None: the step is not about it.
    present: list[bool | None]
    precision: Precision
    backend: str | None
    variants: list[Variant]  # of the groups


@dataclass
class Memory:
    """The outlines of the last step over some parameters, and what they depend on."""

    outlines: list[Outline]
    settings: Settings
    owners: list[int]  # identities of the keys of optimizer.state
    slots: list[int]  # and of its values
    facts: Facts  # about the tensors, as last found


def recall(
    memory: Memory | None,
    settings: Settings,
    state: AllSlots,
    params: Sequence[Tensor],
    grads: Mapping[int, Tensor | None],
) -> tuple[Surveyed, Facts] | None:
    """The tensors found now, in the outlines of an earlier step; None if anything the outlines depend on differs."""
    if memory is None or memory.settings != settings:
        return None
    if memory.owners != [*map(id, state)] or memory.slots != [*map(id, state.values())]:
        return None
    every = [*state.values()]
    planned = []
    for outline in memory.outlines:
        found = gather(outline, every, params, grads)
        if found is None:
            return None
        planned.append((outline, found))
    written, read = tensors_of(planned)
    facts = find_facts(written, read, memory.facts)
    if facts.known is not memory.facts.known and facts.known != memory.facts.known:
        return None
    memory.facts = facts
    return planned, facts


def gather(
    outline: Outline,
    every: Sequence[Any],
    params: Sequence[Tensor],
    grads: Mapping[int, Tensor | None],
) -> Found | None:
    """What the members of an outline have now; None if a state is missing or step counts differ."""
    owners = [params[i] for i in outline.ordinals]
    slots = [every[i] if i >= 0 else {} for i in outline.positions]
    found = Found(0, owners, owners, [grads[i] for i in outline.ordinals], [], slots)  # type: ignore[misc]
    try:
        found.states = [[each[name] for each in slots] for name in outline.entries]
        if outline.kind.counted:
            steps = [each["step"] for each in slots]
            found.step = steps[0]
            if type(found.step) is not int or steps.count(found.step) != len(steps):
                return None
            if not 0 <= found.step <= MOST_STEPS:
                return None  # the survey will refuse it
    except (KeyError, TypeError, ValueError, RuntimeError):  # an array as a step count, say
        return None
    if outline.specs is not None:
        lists = [outline.specs.parts(each) for each in (owners, found.grads)]
        for placed, each in zip(outline.placed, found.states, strict=True):
            lists.append(outline.specs.parts(each) if placed else each)
        if any(parts is None for parts in lists):
            return None
        found.params, found.grads, *found.states = lists  # type: ignore[assignment]
    return found


def tensors_of(planned: Surveyed) -> tuple[list[list[Tensor]], list[Tensor]]:
    """The tensors a step writes, and those it only reads."""
    written = [tensors for _, found in planned for tensors in (found.params, *found.states)]
    return written, [grad for _, found in planned for grad in found.grads]
