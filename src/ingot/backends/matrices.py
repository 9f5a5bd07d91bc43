"""Rows of equal length as one matrix: sums over rows and factors per row, without an index for every element."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ingot.backends.operands import Operands, Unit, limit, rounds, units
from ingot.backends.pieces import Piece
from ingot.declare.sums import SUMS
from ingot.reductions.rows import PerRow, Rows
from ingot.sharding.dtensor import sum_dtype

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket


class Matrices:
    """Some tensors of a bucket, in the order of the lengths of their rows.

    Attributes:
        members: the tensors.
        size: the number of their elements.
        rows: their rows, in this order, and room for sums.
        row_index: the places of these rows among those of the whole bucket.
        runs: ``(first element, end, first row, end, length)`` of neighbours with rows of one length.
    """

    def __init__(self, bucket: Bucket, members: list[Unit], size: int) -> None:
        self.members, self.size = members, size
        indices = [unit.member for unit in members]
        self.rows = Rows(bucket, sum_dtype(bucket.params[0]), indices)
        counts = bucket.row_counts
        before = [0, *accumulate(counts)]
        places = [row for i in indices for row in range(before[i], before[i + 1])]
        self.row_index = torch.tensor(places, device="cpu").to(bucket.params[0].device)
        self.runs: list[tuple[int, int, int, int, int]] = []
        element = row = 0
        for i in indices:
            numel, count = bucket.params[i].numel(), counts[i]
            start, first = element, row
            element, row = element + numel, row + count
            if self.runs and self.runs[-1][4] == numel // count:
                start, _, first, _, _ = self.runs.pop()
            self.runs.append((start, element, first, row, numel // count))

    def cut(self, flat: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """The matrices of all elements, each with the places of its rows."""
        for start, stop, first, last, length in self.runs:
            yield flat[start:stop].view(last - first, length), slice(first, last)

    def scale_(self, flat: Tensor, factor: PerRow) -> None:
        """Multiply every row by its factor, or all elements by one."""
        if not isinstance(factor, Tensor):
            flat.mul_(factor)
            return
        factor = factor.to(flat.dtype)
        for matrix, rows in self.cut(flat):
            matrix.mul_(factor[rows, None])

    def add_up(self, operands: Operands, update: Piece) -> Tensor | None:
        """Sums of products over all rows, into ``self.rows``; returns the parameter as one vector, if it was made."""
        pieces = {"param": operands.param, "grad": Piece(operands.grad), "update": update}
        flats: dict[str, Tensor] = {}
        wide = self.rows.values.dtype
        for name, out in zip(self.rows.variant.spec.sums, self.rows.sums, strict=True):
            factors = SUMS[name]
            if factors[0] == factors[1] and not self.rows.variant.spec.rows:
                # One row per tensor: torch takes the norms of a list where it is.
                tensors = pieces[factors[0]].tensors
                torch.stack(torch._foreach_norm(tensors, 2, dtype=wide), out=out).square_()
                continue
            for factor in factors:
                if factor not in flats:
                    flats[factor] = pieces[factor].flat(operands.dtype)
            one, two = (flats[factor] for factor in factors)
            if one is two:
                for matrix, rows in self.cut(one):
                    torch.linalg.vector_norm(matrix, dim=1, dtype=wide, out=out[rows])
                out.square_()
            else:
                for matrix, rows in self.cut(one * two):
                    torch.sum(matrix, 1, dtype=wide, out=out[rows])
        return flats.get("param")

    def apply(
        self,
        operands: Operands,
        update: Piece,
        keep: PerRow,
        rate: PerRow,
        flat: Tensor | None = None,
    ) -> None:
        """``param = keep * param - rate * update``, row by row, and store it; ``flat`` as ``add_up`` made it."""
        param, dtype = operands.param, operands.dtype
        if isinstance(keep, Tensor):
            flat = param.flat(dtype) if flat is None else flat
            self.scale_(flat, keep)
            if isinstance(rate, Tensor) or operands.bucket.rounding is not None:
                self.scale_(update.flat(dtype), rate)
                flat.sub_(update.flat(dtype))
            else:
                flat.sub_(update.flat(dtype), alpha=rate)
            if flat.data_ptr() != param.tensors[0].data_ptr():
                torch._foreach_copy_(param.tensors, Piece.view(flat, param.tensors).tensors)
        else:
            if keep != 1.0:
                torch._foreach_mul_(param.tensors, keep)
            self.scale_(update.flat(dtype), rate)
            torch._foreach_sub_(param.tensors, update.tensors)
        operands.store_param()


def matrices(bucket: Bucket) -> list[Matrices]:
    """The tensors of a bucket by the length of their rows, in rounds; kept for buckets of the same shapes."""
    # Of a DTensor the whole shape counts as well: lengths of rows are those over all shards.
    shapes = tuple(p.shape for p in bucket.params), tuple(bucket.shapes)
    key = "matrices", bucket.params[0].device, bucket.params[0].dtype, shapes
    kept = bucket.scratch
    if key not in kept:
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)))
        counts = bucket.row_counts
        order = sorted(units(bucket), key=lambda each: (each[1] // counts[each[0].member], each[1]))
        kept[key] = [Matrices(bucket, *each) for each in rounds(order, limit(bucket))]
    found: list[Matrices] = kept[key]
    return found


KEPT = 2  # lists of shapes whose rows are remembered, for gradients that come and go in turns
