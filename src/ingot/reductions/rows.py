"""The sums between the two passes of LAMB and AdamP: per row and per tensor, complete across shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.declare.spec import Sums
from ingot.sharding import dtensor as shards
from ingot.sharding.collectives import Block, Roll, add_up
from ingot.sharding.dtensor import Split

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer
    from ingot.step.plan import Bucket

Factor = Tensor | float  # one number per row, or one for all


class Rows:
    """The rows of some tensors of a bucket, and room for their sums.

    A row is one index of dim 0, where the spec looks at rows and the tensor has two or more dimensions; otherwise
    the tensor is one row. Only local rows are listed, but lengths count all shards.

    Attributes:
        counts: number of local rows per tensor.
        tensor_of_row: index of its tensor, per row.
        sums: [spec.sums, rows], to be filled by a backend.
        totals: [spec.sums, tensors]; after ``add_up``, sums over the local rows.
        row_scores: per tensor; after ``add_up``, the scores of the local rows added up.
        total_score: per tensor; after ``add_up``, the score of the whole tensor.
    """

    def __init__(self, bucket: Bucket, dtype: torch.dtype, start: int = 0, stop: int | None = None):
        self.variant = bucket.variant
        spec = self.variant.spec
        owners, params = bucket.owners[start:stop], bucket.params[start:stop]
        device = params[0].device
        apart = [spec.rows and owner.ndim > 1 for owner in owners]
        self.counts = [p.shape[0] if a else 1 for p, a in zip(params, apart, strict=True)]
        counts = torch.tensor(self.counts, device="cpu")
        index = torch.arange(len(counts), device="cpu").repeat_interleave(counts)
        self.tensor_of_row = index.to(device)
        lengths = torch.tensor(
            [root_lengths(o) if a else (math.inf,) * 2 for o, a in zip(owners, apart, strict=True)],
            dtype=torch.float64,
            device="cpu",
        )
        self.root_n = torch.cat([lengths[index, 0], lengths[:, 1]]).to(device, dtype)
        self._lay_out(dtype, len(index))

    def _lay_out(self, dtype: torch.dtype, rows: int) -> None:
        """One buffer for everything, and all views of it: made once, so that a step makes none."""
        names = self.variant.spec.sums
        width = rows + len(self.counts)
        self.values = torch.zeros(len(names) + 2, width, dtype=dtype, device=self.root_n.device)
        self.sums, self.totals = self.values[: len(names), :rows], self.values[: len(names), rows:]
        self.row_scores, self.total_score = self.values[-2, rows:], self.values[-1, rows:]
        self.per_tensor = self.values[:, rows:]
        self.both = Sums(**dict(zip(names, self.values, strict=False)), root_n=self.root_n)
        self.row = Sums(**dict(zip(names, self.sums, strict=True)), root_n=self.root_n[:rows])

    def add_up(self, s: Any) -> None:
        """Add the rows of each tensor up, and their scores; ``s`` are the scalars of the step."""
        self.totals.index_add_(1, self.tensor_of_row, self.sums)
        if self.variant.spec.score is not None:
            rows = len(self.tensor_of_row)
            score = self.variant.spec.score(self.both, s).to(self.values.dtype)
            self.row_scores.index_add_(0, self.tensor_of_row, score[:rows])
            self.total_score.copy_(score[rows:])

    def complete(self, per_tensor: Tensor, s: Any) -> None:
        """Replace local totals and scores by those of the whole tensors, [spec.sums and row_scores, tensors]."""
        self.per_tensor[:-1].copy_(per_tensor)
        if self.variant.spec.score is not None:
            score = self.variant.spec.score(self.both, s)
            self.total_score.copy_(score[len(self.tensor_of_row) :])

    def factors(self, s: Any) -> tuple[Factor, Factor]:
        """``(keep, rate)`` per row, from complete totals."""
        *totals, row_scores, total_score = self.per_tensor.index_select(
            1, self.tensor_of_row
        ).unbind()
        total = Sums(**dict(zip(self.variant.spec.sums, totals, strict=True)))
        keep, rate = self.variant.finish(self.row, total, row_scores, total_score, s)
        return keep, rate


def root_lengths(owner: Tensor) -> tuple[float, float]:
    """Roots of the number of (real) elements of a row and of the whole tensor, over all shards."""
    numel = owner.numel() * (2 if owner.is_complex() else 1)
    return math.sqrt(numel / max(owner.shape[0], 1)), math.sqrt(numel)


def sharded_factors(
    optimizer: FusedOptimizer,
    buckets: Sequence[Bucket],
    sums: Sequence[Tensor],
    failed: bool = False,
) -> list[tuple[Factor, Factor]]:
    """``(keep, rate)`` per local row of each sharded bucket, from the local sums of their rows.

    Two exchanges at most, whatever the number of parameters: one completes rows that are split themselves (only
    where the spec looks at rows and a tensor is split along another dimension than 0), one adds up the rows.
    Every process takes part, also one without any bucket, or one that ``failed`` to plan the step.
    """
    present = [ordinal for bucket in buckets for ordinal in bucket.ordinals]
    roll = Roll(optimizer, present, failed)
    every = []
    for bucket, local in zip(buckets, sums, strict=True):
        rows = Rows(bucket, roll.dtype)
        rows.sums.copy_(local)
        every.append(rows)
    complete_rows(optimizer, roll, buckets, every)
    totals = torch.zeros(
        len(optimizer.spec.sums) + 1, len(roll.params), dtype=roll.dtype, device=roll.device
    )
    number = {ordinal: i for i, ordinal in enumerate(roll.params)}
    columns = [torch.tensor([number[o] for o in b.ordinals], device=roll.device) for b in buckets]
    for bucket, rows, column in zip(buckets, every, columns, strict=True):
        rows.add_up(bucket.scalars)
        totals[:, column] = rows.per_tensor[:-1].to(totals.device)
    by_rows = [
        split.rows if has_parts(optimizer, param, split) else split.groups
        for param, split in zip(roll.params.values(), roll.splits.values(), strict=True)
    ]
    add_up([Block(totals, by_rows), roll.block])
    roll.check()
    factors = []
    for bucket, rows, column in zip(buckets, every, columns, strict=True):
        rows.complete(totals[:, column].to(rows.values.device), bucket.scalars)
        factors.append(rows.factors(bucket.scalars))
    return factors


def complete_rows(
    optimizer: FusedOptimizer, roll: Roll, buckets: Sequence[Bucket], every: Sequence[Rows]
) -> None:
    """Add up the parts of rows that are split over processes: one exchange, none if there are no such rows."""
    parts = {
        ordinal: split.parts
        for (ordinal, split), param in zip(roll.splits.items(), roll.params.values(), strict=True)
        if has_parts(optimizer, param, split)
    }
    if not parts:
        return
    counts = [shards.local(roll.params[ordinal]).shape[0] for ordinal in parts]
    values = torch.zeros(
        len(optimizer.spec.sums), sum(counts), dtype=roll.dtype, device=roll.device
    )
    theirs = dict(zip(parts, values.split(counts, 1), strict=True))
    pairs = [
        (theirs[ordinal], piece)
        for bucket, rows in zip(buckets, every, strict=True)
        for ordinal, piece in zip(bucket.ordinals, rows.sums.split(rows.counts, 1), strict=True)
        if ordinal in theirs
    ]
    for packed, piece in pairs:
        packed.copy_(piece)
    add_up([Block(values, list(parts.values()), counts)])
    for packed, piece in pairs:
        piece.copy_(packed)


def has_parts(optimizer: FusedOptimizer, param: Tensor, split: Split) -> bool:
    """Whether the optimizer looks at rows of a tensor and every process has a part of each."""
    return optimizer.spec.rows and param.ndim > 1 and bool(split.parts)
