"""The plan of one step: buckets, made from outlines and from what is there now.

Outlines are kept for the next step, but every step reads again what they depend on: which parameters and states there
are, which parameters have gradients, and the type, device, shape and strides of every tensor. If anything differs, all
parameters are surveyed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ingot import backends
from ingot.declare.options import may_change
from ingot.declare.spec import Spec, Variant
from ingot.step.bucket import Bucket, Members
from ingot.step.facts import Facts, find_facts
from ingot.step.overlap import disentangle
from ingot.step.roster import Groups, Roster, all_params
from ingot.step.survey import Found, Outline, State, survey
from ingot.step.transit import take_along
from ingot.storage.offload import Offload
from ingot.storage.precision import Precision, math_dtype
from ingot.storage.rounding import Rounding

Planned = list[tuple[Outline, Found]]


@dataclass(frozen=True)
class Settings:
    """What outlines depend on apart from the tensors."""

    present: list[bool]  # whether each parameter has a gradient
    precision: Precision
    backend: str | None
    variants: list[Variant]  # of the groups


@dataclass(frozen=True)
class Memory:
    """The outlines of the last step and what they depend on."""

    outlines: list[Outline]
    settings: Settings
    owners: list[int]  # identities of the keys of optimizer.state
    slots: list[int]  # and of its values
    known: Any  # facts about the tensors


class Planner:
    """Plans the steps of one optimizer, of which it knows only what it is given."""

    def __init__(
        self,
        owner: str,
        spec: Spec,
        check: Callable[[Mapping[str, Any]], None],
        offload: Offload | None = None,
    ) -> None:
        self.owner, self.spec, self.check, self.offload = owner, spec, check, offload
        self.roster: Roster | None = None
        self.memory: Memory | None = None
        self.recalled = False  # whether the last step used the outlines of the one before
        self.checked: list[dict[str, Any]] = []  # options that were found good
        self.scratch: dict[Any, dict[Any, Any]] = {}  # what backends keep, per kind of bucket

    def refresh(self, groups: Groups) -> tuple[Roster, list[Tensor]]:
        """The roster as it is now, and the parameters."""
        params = all_params(groups)
        if self.roster is None or not self.roster.holds(groups, params):
            self.roster, self.memory = Roster(self.owner, groups, params), None
        return self.roster, params

    def plan(
        self,
        roster: Roster,
        params: Sequence[Tensor],
        groups: Groups,
        state: State,
        precision: Precision,
        backend: str | None = None,
        chosen: Sequence[int] | None = None,
    ) -> list[Bucket]:
        """The buckets of this step, each with its backend. Raises before anything is changed.

        Args:
            roster: who the parameters are, as ``refresh`` has just found.
            params: the parameters.
            groups: the parameter groups.
            state: the optimizer's state.
            precision: the precision options.
            backend: the name of the backend to use; None to choose.
            chosen: the ordinals of the parameters to update; None for all that have a gradient.
        """
        self._check_options(groups)
        if self.offload is not None:
            self.offload.attach(params)
        grads = [param.grad for param in params]
        if chosen is not None:
            wanted = set(chosen)
            grads = [grad if i in wanted else None for i, grad in enumerate(grads)]
        present = [grad is not None for grad in grads]
        variants = [self.spec.variant(group) for group in groups]
        settings = Settings(present, precision, backend, variants)
        found = self._recall(settings, state, params, grads)
        self.recalled = found is not None
        if found is None:
            self.memory = None
            planned = survey(
                self.spec, roster, groups, state, precision, params, grads, self.offload
            )
            found = planned, find_facts(*tensors_of(planned))
            self._remember(*found, settings, state)
        planned, facts = found
        buckets = [self._fill(groups, *each) for each in planned]
        if facts.overlap:
            buckets = disentangle(buckets, lambda ordinal: roster.place(ordinal, groups))
        for bucket in buckets:
            bucket.backend = backends.choose(bucket, backend)
        if self.offload is not None:
            take_along(buckets, self.offload, lambda ordinal: roster.place(ordinal, groups))
        return buckets

    def _check_options(self, groups: Groups) -> None:
        """Check the options of a group again if one may have changed since they were found good."""
        for number, group in enumerate(groups):
            known = self.checked[number] if number < len(self.checked) else {}
            if len(known) + 1 != len(group) or any(group.get(k) is not v for k, v in known.items()):
                self.check(group)
                good = {name: value for name, value in group.items() if name != "params"}
                self.checked[number : number + 1] = [{} if may_change(group) else good]

    def _recall(
        self,
        settings: Settings,
        state: State,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
    ) -> tuple[Planned, Facts] | None:
        """The tensors found now, in the outlines of the last step; None if anything the outlines depend on differs."""
        memory = self.memory
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
        facts = find_facts(*tensors_of(planned))
        return (planned, facts) if facts.known == memory.known else None

    def _remember(self, planned: Planned, facts: Facts, settings: Settings, state: State) -> None:
        """Keep the outlines for the next step; not those of parameters that came from another device.

        Nor if this one makes new states, which the next would find in place.
        """
        passing = any(found.away or any(found.fresh) for _, found in planned)
        if facts.known is not None and not passing:
            outlines = [outline for outline, _ in planned]
            ids = [*map(id, state)], [*map(id, state.values())]
            self.memory = Memory(outlines, settings, *ids, facts.known)
        kept = self.scratch
        self.scratch = {}
        for outline, _ in planned:
            outline.scratch = self.scratch.setdefault(outline.kind, kept.get(outline.kind, {}))

    def _fill(self, groups: Groups, outline: Outline, found: Found) -> Bucket:
        """The bucket of this step: the one place where buckets are made."""
        kind, step = outline.kind, found.step + 1
        variant, group = kind.variant, groups[kind.group]
        formula_step = step if variant.spec.counted else 1 if kind.first else 2
        states = found.states
        members = Members(
            group=kind.group,
            step=step,
            counted=kind.counted,
            sharded=kind.sharded,
            dtype=kind.dtype,
            owners=found.owners,
            ordinals=outline.ordinals,
            slots=found.slots,
            fresh=found.fresh,
        )
        return Bucket(
            variant=variant,
            scalars=variant.spec.numbers(group, formula_step, kind.device, math_dtype(kind.dtype)),
            params=found.params,
            grads=found.grads,
            states=states[:-1] if kind.master else states,
            formats=kind.formats,
            masters=states[-1] if kind.master else None,
            shapes=[owner.shape for owner in found.owners] if variant.two_pass else [],
            inner_dims=1 if kind.dtype.is_complex else 0,
            plain=kind.plain,
            grad_scale=-1.0 if group["maximize"] else 1.0,
            rounding=Rounding(
                group["rounding_seed"],
                step,
                1 + len(variant.states),
                outline.ordinals,
                outline.starts,
            )
            if kind.stochastic
            else None,
            members=members,
            scratch=outline.scratch,
        )


def gather(
    outline: Outline,
    every: Sequence[Any],
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
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
    except (KeyError, TypeError):
        return None
    if outline.specs is not None:
        lists = [outline.specs.parts(each) for each in (owners, found.grads)]
        for placed, each in zip(outline.placed, found.states, strict=True):
            lists.append(outline.specs.parts(each) if placed else each)
        if any(parts is None for parts in lists):
            return None
        found.params, found.grads, *found.states = lists  # type: ignore[assignment]
    return found


def tensors_of(planned: Planned) -> tuple[list[list[Tensor]], list[Tensor]]:
    """The tensors a step writes, and those it only reads."""
    written = [tensors for _, found in planned for tensors in (found.params, *found.states)]
    return written, [grad for _, found in planned for grad in found.grads]
