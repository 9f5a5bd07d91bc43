"""The sums between the two passes of LAMB and AdamP: per row and per tensor, complete across shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.declare.spec import Sums

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

PerRow = Tensor | float  # one number per row, or one for all


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

    def __init__(self, bucket: Bucket, dtype: torch.dtype, members: Sequence[int] | None = None):
        self.variant = bucket.variant
        device, every = bucket.params[0].device, bucket.row_counts
        members = range(len(every)) if members is None else members
        shapes, self.counts = [bucket.shapes[i] for i in members], [every[i] for i in members]
        counts = torch.tensor(self.counts, device="cpu")
        index = torch.arange(len(counts), device="cpu").repeat_interleave(
            counts, output_size=sum(self.counts)
        )
        self.tensor_of_row = index.to(device)
        per_element = 2 if bucket.inner_dims else 1
        roots = [root_lengths(shape, per_element, self.variant.spec.rows) for shape in shapes]
        lengths = torch.tensor(roots, dtype=torch.float64, device="cpu").reshape(-1, 2)
        # Converted here: some devices have no float64.
        self.root_n = torch.cat([lengths[index, 0], lengths[:, 1]]).to(dtype).to(device)
        self._lay_out(dtype, len(index))
        self._sort(index)

    def _sort(self, tensor_of_row: Tensor) -> None:
        """Find the tensors that have the same number of rows: sums over their rows are sums over a matrix."""
        device = self.values.device
        order = sorted(range(len(self.counts)), key=self.counts.__getitem__)
        self.equal: list[tuple[int, int]] = []  # (tensors, rows of each)
        for count, same in groupby(order, key=self.counts.__getitem__):
            self.equal.append((len([*same]), count))
        self.row_order = self.tensor_order = None  # None: they are in this order
        if order != [*range(len(order))]:
            place = torch.empty(len(order), dtype=torch.int64, device="cpu")
            place[order] = torch.arange(len(order), device="cpu")
            self.tensor_order = place.to(device)
            self.row_order = torch.argsort(place[tensor_of_row], stable=True).to(device)

    def _per_tensor(self, of_rows: Tensor, out: Tensor) -> None:
        """Add up the rows of each tensor, [names, rows] to [names, tensors]: every sum has one writer.

        ``index_add_`` would add in any order on GPUs.
        """
        if self.row_order is not None:
            of_rows = of_rows.index_select(1, self.row_order)
        sums = out if self.tensor_order is None else torch.empty_like(out)
        row = tensor = 0
        for tensors, count in self.equal:
            part = of_rows[:, row : row + tensors * count].unflatten(1, (tensors, count))
            torch.sum(part, 2, out=sums[:, tensor : tensor + tensors])
            row, tensor = row + tensors * count, tensor + tensors
        if self.tensor_order is not None:
            torch.index_select(sums, 1, self.tensor_order, out=out)

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
        self._per_tensor(self.sums, self.totals)
        if self.variant.spec.score is not None:
            rows = len(self.tensor_of_row)
            score = self.variant.spec.score(self.both, s).to(self.values.dtype)
            self._per_tensor(score[None, :rows], self.row_scores[None])
            self.total_score.copy_(score[rows:])

    def complete(self, per_tensor: Tensor, s: Any) -> None:
        """Replace local totals and scores by those of the whole tensors, [spec.sums and row_scores, tensors]."""
        self.per_tensor[:-1].copy_(per_tensor)
        if self.variant.spec.score is not None:
            score = self.variant.spec.score(self.both, s)
            self.total_score.copy_(score[len(self.tensor_of_row) :])

    def factors(self, s: Any) -> tuple[PerRow, PerRow]:
        """``(keep, rate)`` per row, from complete totals."""
        keep, rate = self.variant.finish(*self._spread(), s)
        # One number that the device made for all rows, the rate say, becomes one per row.
        count = len(self.tensor_of_row)
        keep, rate = (
            f.expand(count) if isinstance(f, Tensor) and f.ndim == 0 else f for f in (keep, rate)
        )
        return keep, rate

    def watched(self, s: Any) -> dict[str, PerRow]:
        """What the optimizer lets its users watch, per row, from complete totals."""
        return self.variant.watch(*self._spread(), s)

    def _spread(self) -> tuple[Sums, Sums, Tensor, Tensor]:
        """What ``finish`` reads: sums of each row, and beside them the sums and scores of its tensor."""
        *totals, row_scores, total_score = self.per_tensor.index_select(
            1, self.tensor_of_row
        ).unbind()
        total = Sums(**dict(zip(self.variant.spec.sums, totals, strict=True)))
        return self.row, total, row_scores, total_score

    def per_tensor_sum(self, value: PerRow) -> Tensor:
        """One number per row, added up over the local rows of each tensor."""
        like = self.row_scores
        every = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        every = every.expand(len(self.tensor_of_row))
        return torch.zeros_like(like).index_add_(0, self.tensor_of_row, every)


def root_lengths(shape: torch.Size, per_element: int, rows: bool) -> tuple[float, float]:
    """Roots of the number of real numbers in a row and in the whole tensor, over all shards.

    Infinite where there are no rows to look at, as ``Sums`` says.
    """
    if not rows or len(shape) < 2:
        return math.inf, math.inf
    numel = shape.numel() * per_element
    return math.sqrt(numel / max(shape[0], 1)), math.sqrt(numel)
