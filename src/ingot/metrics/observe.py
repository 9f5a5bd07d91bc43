"""Measures one step, on any backend: what is there before it, what its passes add up, what is different after it.

A backend knows nothing of this. Weights are copied before the step and compared after it. LAMB and AdamP run by the two
calls of the protocol that sharded parameters use, ``first`` and ``second``: these hand over the sums between passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ingot.declare.spec import Clip
from ingot.metrics.record import ratio
from ingot.reductions.norms import Norm, Whole, magnitude, reported
from ingot.reductions.rows import Rows
from ingot.sharding.collectives import Summands, add_up
from ingot.sharding.dtensor import sum_dtype
from ingot.step.bucket import Bucket
from ingot.step.roster import Roster
from ingot.storage.master import adopted
from ingot.storage.precision import math_dtype

# Rows of the table that is filled, one column per parameter: sums of squares, then the sum over rows and the number of
# rows for each quantity that a two-pass optimizer lets watch.
GRAD, WEIGHT, UPDATE, WATCHED = range(4)
KNOWN = {"gg": GRAD, "pp": WEIGHT}  # sums of squares that the passes may have made already


class Observation:
    """What is seen of one step, or of several over different parameters.

    Attributes:
        found: after ``finish``: the numbers of each parameter that was updated, by its ordinal.
        total_norm: after ``finish``: the norm of all gradients, unscaled, before clipping.
    """

    def __init__(self) -> None:
        self.found: dict[int, dict[str, float]] = {}
        self.total_norm = 0.0
        self.before: dict[Bucket, list[Tensor]] = {}
        self.rows: dict[Bucket, Rows] = {}

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Copy the weights. That needs memory, so it comes before the step is committed."""
        for bucket in buckets:
            bucket.backend.wait(bucket)
        self.before = {bucket: copied_weights(bucket) for bucket in buckets}
        self.rows = {}

    def run(self, bucket: Bucket) -> None:
        """Update a bucket that is complete in this process; bit for bit what ``Backend.run`` does."""
        if not bucket.variant.two_pass:
            bucket.backend.run(bucket)
            return
        sums = bucket.backend.first(bucket)
        rows = self.rows[bucket] = Rows(bucket, sums.dtype)
        rows.sums.copy_(sums)
        rows.add_up(bucket.scalars)
        bucket.backend.second(bucket, *rows.factors(bucket.scalars))

    def finish(
        self,
        everything: Whole,
        clips: Sequence[tuple[Clip, ...]],
        grad_scale: Tensor | float | None,
        norm: Norm | None,
    ) -> None:
        """Measure what changed, complete it across processes and keep it as plain numbers.

        Args:
            everything: the parameters of the optimizer.
            clips: the clippings of each group.
            grad_scale: the scale of a GradScaler; None without one.
            norm: the norm that gradients were clipped by; None if no group clips.
        """
        scale = 1.0 if grad_scale is None else float(grad_scale)
        watched = {bucket: rows.watched(bucket.scalars) for bucket, rows in self.rows.items()}
        names = sorted({name for each in watched.values() for name in each})
        known = {
            bucket: known_squares(bucket, self.rows.get(bucket), bool(clips[bucket.members.group]))
            for bucket in self.before
        }
        table = zeros(WATCHED + 2 * len(names), len(everything.params))
        for bucket, before in self.before.items():
            columns = zeros(len(table), len(before))
            measure(bucket, before, known[bucket], scale, columns)
            for name, value in watched.get(bucket, {}).items():
                place = WATCHED + 2 * names.index(name)
                columns[place] = self.rows[bucket].per_tensor_sum(value)
                columns[place + 1] = torch.tensor(self.rows[bucket].counts, device="cpu")
            table[:, bucket.members.ordinals] = columns
        complete(table, everything.roster)
        for bucket in self.before:
            ordinals = bucket.members.ordinals
            for place, total in known[bucket].items():  # complete as they are
                table[place, ordinals] = total
            clipped = bool(clips[bucket.members.group])
            clip = float(magnitude(bucket.grad_scale)) * scale if clipped else None
            for ordinal, column in zip(ordinals, table[:, ordinals].t().tolist(), strict=True):
                self.found[ordinal] = numbers(column, names, clip)
        squared = float(table[GRAD].sum())
        self.total_norm = math.sqrt(squared) if norm is None else float(reported(*norm))


def copied_weights(bucket: Bucket) -> list[Tensor]:
    """What the step starts from, in the type of the math: the parameters, or their master copies."""
    before = [torch.empty_like(p, dtype=math_dtype(p.dtype)) for p in bucket.params]
    if bucket.masters is None:
        torch._foreach_copy_(before, bucket.params)
    else:
        for copy, param, master in zip(before, bucket.params, bucket.masters, strict=True):
            copy.copy_(adopted(param, master))
    return before


def known_squares(bucket: Bucket, rows: Rows | None, clipped: bool) -> dict[int, Tensor]:
    """The sums of squares that the passes have made, complete across processes, by their row of the table.

    The passes see clipped gradients: with clipping, those are not the ones to report.
    """
    if rows is None:
        return {}
    totals = dict(zip(bucket.variant.spec.sums, rows.totals.to("cpu", torch.float64), strict=True))
    return {
        place: totals[name]
        for name, place in KNOWN.items()
        if name in totals and not (clipped and place == GRAD)
    }


def measure(
    bucket: Bucket,
    before: list[Tensor],
    known: Mapping[int, Tensor],
    scale: float,
    columns: Tensor,
) -> None:
    """Sums of squares over what this process holds, except for known ones; the copied weights are used up."""
    if GRAD not in known:
        columns[GRAD] = squares(bucket.grads) / scale**2
    if WEIGHT not in known:
        columns[WEIGHT] = squares(before)
    torch._foreach_sub_(before, bucket.params if bucket.masters is None else bucket.masters)
    columns[UPDATE] = squares(before)


def squares(tensors: list[Tensor]) -> Tensor:
    """The sum of the squares of each tensor."""
    norms = torch._foreach_norm(tensors, 2, dtype=sum_dtype(tensors[0]))
    return torch.stack(norms).to("cpu", torch.float64).square()


def complete(table: Tensor, roster: Roster) -> None:
    """Add up what the processes hold of sharded parameters: one all-reduce per process group."""
    if roster.sharded:
        shards = table[:, roster.sharded].to(roster.device, roster.sum_dtype)
        add_up([Summands(shards, [roster.splits[i].groups for i in roster.sharded])])
        table[:, roster.sharded] = shards.to("cpu", torch.float64)


def numbers(column: Sequence[float], names: Sequence[str], clip: float | None) -> dict[str, float]:
    """What users get of one parameter, from its column of the table."""
    grad, weight, update = map(math.sqrt, column[:WATCHED])
    found = {"grad_norm": grad, "weight_norm": weight, "update_norm": update}
    found["update_ratio"] = ratio(update, weight)
    if clip is not None:
        found["clip_coefficient"] = clip
    for name, value, count in zip(names, column[WATCHED::2], column[WATCHED + 1 :: 2], strict=True):
        if count:
            found[name] = value / count
    return found


def zeros(*shape: int) -> Tensor:
    """Room for numbers in double precision, on the CPU."""
    return torch.zeros(*shape, dtype=torch.float64, device="cpu")
