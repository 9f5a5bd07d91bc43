"""The reference backend: the declared math on torch tensors, one after the other; the ground truth of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ingot.backends.backend import Backend, reserve
from ingot.declare.sums import SUMS
from ingot.reductions.rows import PerRow, Rows
from ingot.sharding.dtensor import sum_dtype
from ingot.storage import master
from ingot.storage.floats import floats
from ingot.storage.format import Bits
from ingot.storage.precision import math_dtype

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

# Elements taken at a time. What the math needs beside the tensors is then bounded and can be reserved before the
# commit; on the CPU it stays in the cache as well.
PIECE_ON_CPU, PIECE = 1 << 18, 1 << 24
# Temporaries alive at the same time: operands in the type of the math, results, a root in float64; random bits: int64.
BUFFERS, BUFFERS_OF_BITS, BUFFERS_OF_BLOCKS = 10, 16, 6


class Piece:
    """Some neighbouring rows of one tensor of a bucket: what is loaded from it and stored into it."""

    def __init__(self, bucket: Bucket, index: int, rows: slice | None) -> None:
        self.bucket, self.index, self.rows = bucket, index, rows
        self.stored = self._cut(bucket.params[index])
        self.dtype = math_dtype(self.stored.dtype)

    def _cut(self, tensor: Tensor) -> Tensor:
        return tensor if self.rows is None else tensor[self.rows]

    def param(self) -> Tensor:
        """The parameter in the type of the math; from its master copy, unless someone else changed it."""
        if self.bucket.masters is None:
            return self.stored.to(self.dtype)
        return master.adopted(self.stored, self._cut(self.bucket.masters[self.index]))

    def grad(self) -> Tensor:
        """The gradient, scaled."""
        scale = self.bucket.grad_scale
        if isinstance(scale, Tensor):
            scale = scale.to(self.dtype)  # a 0-dim gradient would take on the type of a wider scale
        return self._cut(self.bucket.grads[self.index]).to(self.dtype) * scale

    def states(self) -> list[Tensor]:
        """The states in the type of the math."""
        pairs = zip(self.bucket.formats, self._parts(), strict=True)
        return [form.load(parts, self.dtype) for form, parts in pairs]

    def store_states(self, values: Sequence[Tensor]) -> None:
        """Write new states."""
        triples = zip(self.bucket.formats, self._parts(), values, strict=True)
        for operand, (form, parts, value) in enumerate(triples, 1):
            form.store(parts, value, self._bits(operand))

    def store_param(self, value: Tensor) -> None:
        """Write the parameter, and its master copy if there is one."""
        if self.bucket.masters is None:
            floats(self.stored.dtype).store([self.stored], value, self._bits(0))
        else:
            self._cut(self.bucket.masters[self.index]).copy_(value)
            self.stored.copy_(value)

    def _parts(self) -> list[Sequence[Tensor]]:
        every = zip(self.bucket.formats, self.bucket.parts_of(self.index), strict=True)
        return [parts if self.rows is None else form.cut(parts, self.rows) for form, parts in every]

    def _bits(self, operand: int) -> Bits | None:
        """Random bits for every element, if anything is rounded stochastically."""
        rounding = self.bucket.rounding
        if rounding is None:
            return None

        whole = self.bucket.params[self.index]
        start = 0 if self.rows is None else self.rows.start * (whole.numel() // whole.shape[0])
        return lambda: rounding.bits(operand, self.index, start, self.stored)


class Reference(Backend):
    """Runs on any torch device; the number of operators grows with the number of tensors."""

    name = "reference"

    def prepare(self, bucket: Bucket) -> str | None:
        """It takes everything; see that there is room for what the math needs."""
        sizes = [
            piece.stored.numel() for i in range(len(bucket.params)) for piece in pieces(bucket, i)
        ]
        stored = bucket.params[0]
        if bucket.plain and not stored.is_meta:
            count = BUFFERS + (0 if bucket.rounding is None else BUFFERS_OF_BITS)
            count += BUFFERS_OF_BLOCKS if any(form.block > 1 for form in bucket.formats) else 0
            reserve(stored.device, max(sizes), math_dtype(stored.dtype), count)
        if bucket.variant.two_pass:
            bucket.prepared = Rows(bucket, sum_dtype(stored))
        if bucket.rounding is not None:
            assert bucket.rounding.keys
        return None

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""
        if bucket.variant.two_pass:
            rows: Rows = bucket.prepared
            rows.values.zero_()
            rows.sums.copy_(self.first(bucket))
            rows.add_up(bucket.scalars)
            self.second(bucket, *rows.factors(bucket.scalars))
            return
        s = bucket.scalars
        for index in range(len(bucket.params)):
            for piece in pieces(bucket, index):
                param, update = self._advance(piece)
                piece.store_param(s.keep * param - s.rate * update)

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row."""
        columns = []
        for index, count in enumerate(bucket.row_counts):
            parts = [self._sums(bucket, piece, count != 1) for piece in pieces(bucket, index)]
            whole = torch.cat(parts, 1)
            columns.append(whole if whole.shape[1] == count else whole.sum(1, keepdim=True))
        return torch.cat(columns, 1)

    def _sums(self, bucket: Bucket, piece: Piece, by_row: bool) -> Tensor:
        """Sums of products over the rows of a piece."""
        param, update = self._advance(piece)
        tensors = {"param": param, "grad": piece.grad(), "update": update}
        rows = param.shape[0] if by_row else 1
        return torch.stack(
            [
                (tensors[one] * tensors[two])
                .reshape(rows, param.numel() // max(rows, 1))
                .sum(1, dtype=sum_dtype(param))
                for one, two in map(SUMS.__getitem__, bucket.variant.spec.sums)
            ]
        )

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Apply one (keep, rate) per row."""
        first_row = 0
        for index, count in enumerate(bucket.row_counts):
            for piece in pieces(bucket, index):
                param, grad, states = piece.param(), piece.grad(), piece.states()
                update = bucket.variant.direction(param, grad, states, bucket.scalars)
                start, rows = first_row, count
                if count != 1 and piece.rows is not None:
                    start, rows = first_row + piece.rows.start, param.shape[0]
                shape = (rows,) + (1,) * (param.ndim - 1) if param.ndim else ()
                k, r = (
                    f[start : start + rows].to(param.dtype).reshape(shape)
                    if isinstance(f, Tensor)
                    else f
                    for f in (keep, rate)
                )
                piece.store_param(k * param - r * update)
            first_row += count

    def _advance(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """Store the new states; return the old parameter and the update."""
        variant, s = piece.bucket.variant, piece.bucket.scalars
        param, grad = piece.param(), piece.grad()
        states = piece.states()
        new = variant.advance(param, grad, states, s)
        update = variant.direction(param, grad, states, s) if variant.spec.looks_back else None
        piece.store_states(new)
        if update is None:
            unrounded = not variant.two_pass and all(f.unrounded for f in piece.bucket.formats)
            update = variant.direction(param, grad, new if unrounded else piece.states(), s)
        return param, update


def pieces(bucket: Bucket, index: int) -> Iterator[Piece]:
    """A tensor whole, or some rows at a time if it is large and its states can be cut like it."""
    param = bucket.params[index]
    most = PIECE_ON_CPU if param.device.type == "cpu" else PIECE
    if param.numel() <= most or param.ndim == 0 or not bucket.plain:
        yield Piece(bucket, index, None)
        return
    block = max((form.block for form in bucket.formats), default=1)
    unit = block // gcd(block, param.numel() // param.shape[0])  # rows that fill whole blocks
    rows = max(most * param.shape[0] // param.numel() // unit, 1) * unit
    for start in range(0, param.shape[0], rows):
        yield Piece(bucket, index, slice(start, min(start + rows, param.shape[0])))
