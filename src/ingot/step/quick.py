"""Lets a step that is like the last one take the quick path: one call into the core, which checks and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C import _increment_version
from torch._C._autograd import _profiler_enabled
from torch.compiler import is_compiling
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ingot.backends.native import NATIVE
from ingot.declare.options import may_change
from ingot.declare.spec import Spec
from ingot.reductions.norms import norm_dtype
from ingot.step.bucket import Bucket
from ingot.step.facts import guard_of
from ingot.step.plan import Planner
from ingot.step.roster import Groups

if TYPE_CHECKING:
    from ingot.step.planned import Planned


class Quick(NamedTuple):
    """A step that was made, for the core to make others like it."""

    plan: object  # opaque
    step: Callable[[object, dict[str, Any]], bool | float]
    forget_gradients: Callable[[list[dict[str, Any]]], bool]
    norm_dtype: torch.dtype  # of the norm of its gradients


def is_undisturbed(optimizer: Planned) -> bool:
    """Whether no hook is to be called, no profiler is on, nothing is being compiled and the step is not tracked."""
    tracker = optimizer._tracker
    return not (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _profiler_enabled()
        or is_compiling()
        or (tracker is not None and tracker.due)
    )


def remember(
    attributes: dict[str, Any],
    planner: Planner,
    spec: Spec,
    groups: Groups,
    names: Sequence[str],
    buckets: Sequence[Bucket],
) -> Quick | None:
    """What the quick path needs to know of a step that was made; None if steps like it cannot take it.

    Args:
        attributes: ``vars(optimizer)``, where the core finds groups and state again.
        planner: the planner, after the step.
        spec: the optimizer's declaration.
        groups: its parameter groups.
        names: the options that decide about a step; whatever else is in a group is the user's.
        buckets: the step; their tables are used up.
    """
    memory, roster = planner.recalled, planner.roster
    if memory is None or roster is None or roster.specs is not None or len(roster.rounds) > 1:
        return None
    if len(memory.outlines) != len(buckets) or not all(map(is_native, buckets)):
        return None
    from ingot import _native as core

    scopes: dict[Any, int] = {}
    parts = []
    for outline, bucket in zip(memory.outlines, buckets, strict=True):
        scope = scopes.setdefault((bucket.members.group, bucket.members.dtype), len(scopes))
        masters = [] if bucket.masters is None else [bucket.masters]
        parts.append(
            (
                bucket.prepared,
                [bucket.params, bucket.grads, *bucket.states, *masters],
                bucket.members.group,
                scope,
                outline.ordinals,
                outline.positions,
                tuple(outline.entries),
                spec.scalars,
                spec.counted,
                bucket.members.counted,
                outline.starts,
            )
        )
    clipping = [bool(spec.clips(group)) for group in groups]
    changing = [may_change({name: group[name] for name in names}) for group in groups]
    variants, check_options = memory.settings.variants, planner.check

    def refits(number: int, group: dict[str, Any]) -> bool:
        """Whether steps with the options a group has now are still made by the same loops."""
        try:
            check_options(group)
        except ValueError:
            return False  # the whole path will report it
        return (
            spec.variant(group) == variants[number]
            and bool(spec.clips(group)) == clipping[number]
            and may_change({name: group[name] for name in names}) == changing[number]
        )

    options = [(tuple(names), each) for each in changing]
    clips = spec.clips if any(clipping) else None
    present = memory.settings.present
    by_ordinal = {i: g for b in buckets for i, g in zip(b.members.ordinals, b.grads, strict=True)}
    guard = guard_of([by_ordinal[ordinal] for ordinal in sorted(by_ordinal)], layout=False)
    check = None if guard is None else guard.check
    plan = core.remember(
        attributes, _increment_version, options, refits, clips, check, present, parts
    )
    if plan is None:
        return None
    dtype = norm_dtype([bucket.grads[0] for bucket in buckets])
    return Quick(plan, core.quick_step, core.forget_gradients, dtype)


def is_native(bucket: Bucket) -> bool:
    """Whether the core can take a bucket of this kind by itself."""
    wide_grads = bucket.grads[0].element_size() > 4 and bucket.params[0].element_size() < 8
    return bucket.backend is NATIVE and bucket.plain and not bucket.inner_dims and not wide_grads
