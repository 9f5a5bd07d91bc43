"""Looks at every parameter: refuses what cannot be updated, prepares states, sorts parameters into outlines."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.backends.backend import Backend
from ingot.declare.spec import Spec, Variant
from ingot.sharding import dtensor
from ingot.sharding.dtensor import Specs
from ingot.step.bucket import Slots
from ingot.step.refuse import refuse_offload, refuse_pair, refuse_self_overlap, refuse_slots
from ingot.step.roster import Groups, Place, Roster, is_plain
from ingot.storage.counts import step_count
from ingot.storage.floats import floats, resolved
from ingot.storage.format import Format, useless
from ingot.storage.master import NAME as MASTER
from ingot.storage.offload import Offload
from ingot.storage.precision import Precision
from ingot.storage.rounding import first_index

AllSlots = MutableMapping[Tensor, Slots]  # optimizer.state


class Kind(NamedTuple):
    """What the members of a bucket have in common."""

    group: int
    variant: Variant
    device: torch.device
    dtype: torch.dtype
    grad_dtype: torch.dtype
    formats: tuple[Format, ...]  # of its states
    master: bool
    stochastic: bool
    plain: bool
    sharded: bool
    first: bool  # the first step of an optimizer without a counter
    counted: bool  # whether steps are counted in the state: for the formula, or for the random bits of the rounding


@dataclass(eq=False)
class Outline:
    """The members of one bucket, and all about it that stays from step to step. It holds no tensor."""

    kind: Kind
    ordinals: list[int] = field(default_factory=list)
    # Their places among the entries of optimizer.state; -1: none.
    positions: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # see ``Rounding``
    specs: Specs | None = None  # how its DTensors are laid out; None if it has none
    backend: Backend | None = None
    scratch: dict[Any, Any] = field(default_factory=dict)

    @property
    def entries(self) -> list[str]:
        """The names in a member's state, in the order of ``Bucket.states``, the master copy last."""
        pairs = zip(self.kind.variant.states, self.kind.formats, strict=True)
        names = [name + part for name, form in pairs for part in form.parts]
        return [*names, MASTER] if self.kind.master else names

    @property
    def placed(self) -> list[bool]:
        """For every entry, whether it is laid out over the processes as its parameter is; see ``Format.parts``."""
        placed = [not part for form in self.kind.formats for part in form.parts]
        return [*placed, True] if self.kind.master else placed


@dataclass(eq=False)
class Found:
    """What the members of an outline have now. Parameters, gradients and states are local and real."""

    step: int  # the steps made so far
    owners: list[Tensor] = field(default_factory=list)
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: list[list[Tensor]] = field(default_factory=list)  # one list per entry of the outline
    slots: list[Slots] = field(default_factory=list)
    fresh: list[Slots] = field(default_factory=list)
    away: bool = False  # whether ``params`` are copies of owners on another device


def survey(
    spec: Spec,
    roster: Roster,
    groups: Groups,
    state: AllSlots,
    precision: Precision,
    params: Sequence[Tensor],
    grads: Mapping[int, Tensor | None],
    offload: Offload | None = None,
) -> list[tuple[Outline, Found]]:
    """Every parameter that has a gradient, by ordinal, in an outline with others of its kind and number of steps."""
    positions = {id(param): i for i, param in enumerate(state)}
    counted = spec.counted or precision.counts(params)
    result: dict[Any, tuple[Outline, Found]] = {}
    for ordinal, grad in grads.items():
        if grad is None:
            continue
        param = params[ordinal]
        place = roster.place(ordinal, groups)
        refuse_pair(place, param, grad)
        near, near_grad = param, grad
        if offload is not None:
            refuse_offload(place, param)
            near, near_grad = offload.brought(param, grad)
        variant = spec.variant(groups[place.group])
        slots = state.get(param, {})
        refuse_slots(place, slots)
        formats = tuple(precision.format(param, spec.states[name]) for name in variant.states)
        kind = Kind(
            place.group,
            variant,
            near.device,
            param.dtype,
            grad.dtype,
            formats,
            precision.master(param.dtype),
            precision.stochastic(param),
            is_plain(param) and is_plain(grad) and not dtensor.local(param).is_neg(),
            variant.two_pass and bool(roster.splits[ordinal].groups),
            not spec.counted and any(slots.get(name) is None for name in variant.states),
            counted,
        )
        step = step_count(place, slots.get("step", 0))
        away = near is not param
        key = kind, step, away
        if key not in result:
            result[key] = Outline(kind), Found(step, away=away)
        outline, found = result[key]
        outline.ordinals.append(ordinal)
        outline.positions.append(positions.get(id(param), -1))
        if kind.stochastic:
            outline.starts.append(first_index(param))
        found.owners.append(param)
        found.params.append(local_real(near))
        found.grads.append(local_real(resolved(near_grad)))
        add_states(found, prepared_states(place, kind, param, near, slots), slots)
    for outline, found in result.values():
        outline.specs = Specs.of(found.owners)
    return list(result.values())


def add_states(found: Found, states: dict[str, Tensor], slots: Slots) -> None:
    """Add the states of one parameter to what was found for an outline."""
    found.states = found.states or [[] for _ in states]
    for tensors, tensor in zip(found.states, states.values(), strict=True):
        tensors.append(local_real(tensor))
    found.slots.append(slots)
    found.fresh.append({k: v for k, v in states.items() if v is not slots.get(k)})


def prepared_states(
    place: Place, kind: Kind, owner: Tensor, param: Tensor, slots: Slots
) -> dict[str, Tensor]:
    """All states of a parameter as this step needs them: made if missing, beside ``param``, in their formats.

    ``param`` is the owner, or its copy on the host, which may not have arrived yet: its values are not looked at.
    """
    states: dict[str, Tensor] = {}
    for name, form in zip(kind.variant.states, kind.formats, strict=True):
        names = [name + part for part in form.parts]
        start = kind.variant.spec.states[name].start
        tensors = prepared(place, name, names, form, param, slots, start)
        states.update(zip(names, tensors, strict=True))
    if kind.master:
        form = floats(torch.float32)
        (states[MASTER],) = (
            [owner.detach().to(param.device, torch.float32)]
            if slots.get(MASTER) is None
            else prepared(place, MASTER, [MASTER], form, param, slots)
        )
    return states


def prepared(
    place: Place,
    name: str,
    names: Sequence[str],
    form: Format,
    param: Tensor,
    slots: Slots,
    start: float = 0.0,
) -> list[Tensor]:
    """The tensors of one state."""
    if slots.get(names[0]) is None:
        return form.new(param, start)
    tensors: list[Any] = [slots.get(each) for each in names]
    problem = form.problem(param, tensors) or useless(tensors)
    if problem is not None:
        raise RuntimeError(
            f"{place}: shape {tuple(param.shape)}, but its state {name} is {problem}; delete "
            "optimizer.state[param] to start its state afresh"
        )
    if dtensor.is_dtensor(param) or dtensor.is_dtensor(tensors[0]):
        dtensor.check(f"{place}, state {name}", param, tensors[0])
    tensors = form.brought(param, tensors)
    for tensor in tensors:
        refuse_self_overlap(f"{place}, state {name}", tensor)
    return tensors


def local_real(tensor: Tensor) -> Tensor:
    """The tensor that a backend gets: the local part of a DTensor, the real view of a complex tensor.

    Of a lazily conjugated view it is the memory behind it that is viewed.
    """
    tensor = dtensor.local(tensor)
    if not tensor.is_complex():
        return tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
