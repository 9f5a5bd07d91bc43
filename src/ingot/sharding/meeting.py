"""Where the processes of sharded two-pass optimizers meet: between their passes, to complete each other's sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ingot.declare.spec import Spec
from ingot.reductions.rows import PerRow, Rows
from ingot.sharding.collectives import Summands, add_up
from ingot.sharding.dtensor import local
from ingot.step.bucket import Bucket
from ingot.step.roster import Roster


class Meeting:
    """One step of the sharded parameters of a two-pass optimizer."""

    def __init__(self, roster: Roster, params: Sequence[Tensor], spec: Spec) -> None:
        self.roster, self.spec = roster, spec
        self.params = {i: params[i] for i in roster.sharded}
        self.splits = {i: roster.splits[i] for i in roster.sharded}
        self.rows: list[Rows] = []  # after ``factors``: those of each bucket, with complete totals

    def factors(
        self, buckets: Sequence[Bucket], sums: Sequence[Tensor]
    ) -> list[tuple[PerRow, PerRow]]:
        """``(keep, rate)`` per local row of each sharded bucket, from the local sums of their rows.

        Two all-reduces per process group at most, whatever the number of parameters: one completes rows that are
        split themselves (only where the spec looks at rows and a tensor is split along another dimension than 0),
        one adds up the rows. Every process takes part, also one without any bucket.
        """
        roster = self.roster
        every = self.rows = []
        for bucket, here in zip(buckets, sums, strict=True):
            rows = Rows(bucket, roster.sum_dtype)
            rows.sums.copy_(here)
            every.append(rows)
        self._complete_rows(buckets, every)
        totals = self._zeros(len(self.spec.sums) + 1, len(self.params))
        column_of = {ordinal: i for i, ordinal in enumerate(self.params)}
        columns = [
            torch.tensor([column_of[o] for o in bucket.members.ordinals], device=roster.device)
            for bucket in buckets
        ]
        for bucket, rows, column in zip(buckets, every, columns, strict=True):
            rows.add_up(bucket.scalars)
            totals[:, column] = rows.per_tensor[:-1].to(totals.device)
        by_rows = [
            split.rows if self._has_split_rows(i) else split.groups
            for i, split in self.splits.items()
        ]
        add_up([Summands(totals, by_rows)])
        factors = []
        for bucket, rows, column in zip(buckets, every, columns, strict=True):
            rows.complete(totals[:, column].to(rows.values.device), bucket.scalars)
            factors.append(rows.factors(bucket.scalars))
        return factors

    def _complete_rows(self, buckets: Sequence[Bucket], every: Sequence[Rows]) -> None:
        """Add up the parts of rows that are split over processes; nothing is sent if there are none."""
        parts = {i: split.parts for i, split in self.splits.items() if self._has_split_rows(i)}
        if not parts:
            return
        counts = [local(self.params[i]).shape[0] for i in parts]
        values = self._zeros(len(self.spec.sums), sum(counts))
        theirs = dict(zip(parts, values.split(counts, 1), strict=True))
        pairs = [
            (theirs[ordinal], piece)
            for bucket, rows in zip(buckets, every, strict=True)
            for ordinal, piece in zip(
                bucket.members.ordinals, rows.sums.split(rows.counts, 1), strict=True
            )
            if ordinal in theirs
        ]
        for packed, piece in pairs:
            packed.copy_(piece)
        add_up([Summands(values, list(parts.values()), counts)])
        for packed, piece in pairs:
            piece.copy_(packed)

    def _has_split_rows(self, ordinal: int) -> bool:
        """Whether the optimizer looks at rows of a tensor and every process has a part of each."""
        split = self.splits[ordinal]
        return self.spec.rows and self.params[ordinal].ndim > 1 and bool(split.parts)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.roster.sum_dtype, device=self.roster.device)
