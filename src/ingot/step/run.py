"""Runs the buckets of a step: scale, agree, commit, then update.

After the commit only what communicates can fail: the sums of sharded LAMB and AdamP, and those of observed steps. They
take memory for some numbers per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.autograd.graph import increment_version

from ingot.declare.spec import Spec
from ingot.reductions.norms import Norm, Whole, clip_in_step
from ingot.sharding.collectives import agree_on_gradients
from ingot.sharding.meeting import Meeting
from ingot.step.bucket import Bucket
from ingot.step.roster import Groups
from ingot.step.survey import AllSlots
from ingot.storage.transfer import HOST

if TYPE_CHECKING:
    from ingot.metrics.observe import Observation


def run(
    buckets: Sequence[Bucket],
    spec: Spec,
    groups: Groups,
    state: AllSlots,
    everything: Whole,
    grad_scale: Tensor | float | None,
    observation: Observation | None = None,
) -> Norm | None:
    """Make a step that was planned.

    Args:
        buckets: the plan.
        spec: the optimizer's declaration.
        groups: its parameter groups.
        state: its state.
        everything: its parameters, for norms and sums over all of them.
        grad_scale: the scale of a GradScaler; None without one.
        observation: what measures this step, prepared for it; None if nobody watches.

    Returns:
        The norm of all gradients, unscaled, before clipping; None if no group clips.
    """
    unscale(buckets, grad_scale)
    wanted = [spec.clips(group) for group in groups]
    norm = None
    if any(wanted):
        norm = clip_in_step(everything, wanted, buckets)
    elif spec.finish is not None or observation is not None:
        present = {ordinal for bucket in buckets for ordinal in bucket.members.ordinals}
        agree_on_gradients(everything.roster, present)
    for bucket in buckets:
        bucket.members.commit(state)
    for bucket in sorted(buckets, key=lambda bucket: bucket.turn):
        if not bucket.members.sharded:
            (bucket.backend if observation is None else observation).run(bucket)
    if spec.finish is not None and everything.roster.sharded:
        sharded = [bucket for bucket in buckets if bucket.members.sharded]
        sums = [bucket.backend.first(bucket) for bucket in sharded]
        meeting = Meeting(everything.roster, everything.params, spec)
        for bucket, factors in zip(sharded, meeting.factors(sharded, sums), strict=True):
            bucket.backend.second(bucket, *factors)
        if observation is not None:
            observation.rows.update(zip(sharded, meeting.rows, strict=True))
    if observation is not None:
        observation.finish(everything, wanted, grad_scale, norm)
    # Backends see local parts and count their versions. Autograd must learn that the DTensors were changed, too.
    if everything.roster.specs is not None:
        for bucket in buckets:
            increment_version(bucket.members.owners)
    return norm


def tell_failure(spec: Spec, groups: Groups, everything: Whole, observed: bool = False) -> None:
    """Take part in what the other processes wait for, so that they learn that this one cannot make the step."""
    from ingot import backends

    if any(map(spec.clips, groups)):
        everything.sums({}, backends.squares, failed=True)
    elif spec.finish is not None or observed:
        agree_on_gradients(everything.roster, (), failed=True)


def unscale(buckets: Sequence[Bucket], scale: Tensor | float | None) -> None:
    """Divide ``bucket.grad_scale`` by the scale of a GradScaler; the host waits only where it needs the number."""
    if scale is None:
        return
    devices = {bucket.params[0].device for bucket in buckets}
    if not isinstance(scale, Tensor) or scale.device.type == "cpu" or HOST in devices:
        scale = float(scale)
    for bucket in buckets:
        factor = scale
        if isinstance(factor, Tensor):
            factor = factor.reshape(()).to(bucket.params[0].device, non_blocking=True)
        bucket.grad_scale = bucket.grad_scale / factor
