"""The plan of one step: buckets, made from outlines and from what is there now.

Outlines are kept for the next step. If anything they depend on differs then, its parameters are surveyed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ingot import backends
from ingot.declare.options import may_change
from ingot.declare.spec import Spec
from ingot.step.bucket import Bucket, Members
from ingot.step.facts import Facts, find_facts
from ingot.step.overlap import disentangle
from ingot.step.recall import Memory, Settings, Surveyed, recall, tensors_of
from ingot.step.roster import Groups, Roster, all_params
from ingot.step.survey import AllSlots, Found, Outline, survey
from ingot.step.transit import take_along
from ingot.storage.offload import Offload
from ingot.storage.precision import Precision, math_dtype
from ingot.storage.rounding import Rounding


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
        # Steps over different parameters are remembered side by side, each under the first ordinal it is about (None:
        # all parameters), so that there are never more than there are parameters.
        self.memories: dict[int | None, Memory] = {}
        self.recalled: Memory | None = None  # whose outlines the last step used again
        self.checked: list[dict[str, Any]] = []  # options that were found good
        # What backends keep, per first ordinal and kind of bucket.
        self.scratch: dict[int | None, dict[Any, dict[Any, Any]]] = {}

    def refresh(self, groups: Groups) -> tuple[Roster, list[Tensor]]:
        """The roster as it is now, and the parameters."""
        params = all_params(groups)
        if self.roster is None or not self.roster.holds(groups, params):
            self.roster = Roster(self.owner, groups, params)
            self.memories.clear()
            self.scratch.clear()
        return self.roster, params

    def plan(
        self,
        roster: Roster,
        params: Sequence[Tensor],
        groups: Groups,
        state: AllSlots,
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
        grads = {i: params[i].grad for i in (range(len(params)) if chosen is None else chosen)}
        present: list[bool | None] = [None] * len(params)
        for i, grad in grads.items():
            present[i] = grad is not None
        first = None if chosen is None else chosen[0]
        variants = [self.spec.variant(group) for group in groups]
        settings = Settings(present, precision, backend, variants)
        memory = self.memories.get(first)
        found = recall(memory, settings, state, params, grads)
        self.recalled = memory if found is not None else None
        if found is None:
            self.memories.pop(first, None)
            planned = survey(
                self.spec, roster, groups, state, precision, params, grads, self.offload
            )
            found = planned, find_facts(*tensors_of(planned))
            self._remember(first, *found, settings, state)
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

    def _remember(
        self,
        first: int | None,
        planned: Surveyed,
        facts: Facts,
        settings: Settings,
        state: AllSlots,
    ) -> None:
        """Keep the outlines for the next step; not those of parameters that came from another device.

        Nor if this one makes new states, which the next would find in place.
        """
        passing = any(found.away or any(found.fresh) for _, found in planned)
        if facts.known is not None and not passing:
            outlines = [outline for outline, _ in planned]
            ids = [*map(id, state)], [*map(id, state.values())]
            self.memories[first] = Memory(outlines, settings, *ids, facts)
        kept = self.scratch.get(first, {})
        scratch = self.scratch[first] = {}
        for outline, _ in planned:
            outline.scratch = scratch.setdefault(outline.kind, kept.get(outline.kind, {}))

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
