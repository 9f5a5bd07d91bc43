"""The flat backend: tensor fusion on any torch device.

A bucket's tensors are copied into flat buffers, the declared math runs once over the buffers, the results are
copied back. All tensors are copied by one ``_foreach_copy_``, so the number of torch operators per step does not
grow with the number of parameters. Nothing is assumed about where tensors live from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.backends.backend import Backend, reserve
from ingot.declare.sums import SUMS
from ingot.reductions.rows import PerRow, Rows
from ingot.storage import master
from ingot.storage.precision import math_dtype
from ingot.storage.rounding import HALVES, random_bits, round_stochastic

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

# Elements fused at a time. A larger bucket takes several rounds, so a buffer never has more elements than this
# (or than the largest tensor): 64 MiB in float32. An operator of that size takes far longer than its launch.
ROUND = 1 << 24
# Elements added up one after the other, before the sums of such pieces are added: keeps float32 sums accurate.
PIECE = 4096
# On the CPU, elements of the average tensor up to which fusing is faster. AdamW and LAMB on 1000 tensors of 1024: 2.7
# and 2.3 times as fast as tensor by tensor; on 500 of 4096: 1.5 and 0.6; on 100 of 65536: 0.5 and 0.15.
SMALL_ON_CPU = 2048
KEPT = 2  # lists of shapes whose buffers are kept, for gradients that come and go in turns


class Round:
    """Flat buffers for some tensors of a bucket, with one view per tensor: made once, used every step.

    ``memory`` is [operands, elements], shared by the rounds of a bucket: param, grad, states, master, products.
    """

    def __init__(self, bucket: Bucket, start: int, stop: int, memory: Tensor) -> None:
        self.start, self.stop = start, stop
        params = bucket.params[start:stop]
        self.dtype, self.device = memory.dtype, memory.device
        self.numels = [param.numel() for param in params]
        memory = memory[:, : sum(self.numels)]
        sums = len(bucket.variant.spec.sums)
        self.buffers = list(memory[: len(memory) - sums])
        self.views = [
            [piece.view(p.shape) for piece, p in zip(b.split(self.numels), params, strict=True)]
            for b in self.buffers
        ]
        if bucket.variant.two_pass:
            self.products = memory[len(memory) - sums :]
            self.product_rows = list(self.products)
            self.rows = Rows(bucket, self.dtype, start, stop)
            self._cut_rows()
        if bucket.rounding is not None:
            self.index = torch.cat([torch.arange(n, device="cpu") for n in self.numels]).to(
                self.device
            )

    def _cut_rows(self) -> None:
        """Number the pieces: which one every element belongs to, and which row every piece belongs to."""
        pieces_before = rows_before = 0
        piece_of_element, row_of_piece = [], []
        for numel, count in zip(self.numels, self.rows.counts, strict=True):
            length = numel // max(count, 1)
            per_row = max(-(-length // PIECE), 1)
            element = torch.arange(numel, device="cpu")
            if numel:
                row = element // length
                element = row * per_row + (element - row * length) // PIECE
            piece_of_element.append(element + pieces_before)
            rows = torch.arange(rows_before, rows_before + count, device="cpu")
            row_of_piece.append(rows.repeat_interleave(per_row))
            pieces_before += count * per_row
            rows_before += count
        self.piece_of_element = torch.cat(piece_of_element).to(self.device, torch.int32)
        self.row_of_piece = torch.cat(row_of_piece).to(self.device, torch.int32)
        self.whole_rows = pieces_before == rows_before
        pieces = torch.zeros(
            len(self.rows.variant.spec.sums), pieces_before, dtype=self.dtype, device=self.device
        )
        self.piece_sums = self.rows.sums if self.whole_rows else pieces

    def add_rows(self) -> None:
        """Sum ``self.products`` over rows into ``self.rows``."""
        self.rows.values.zero_()
        if not self.whole_rows:
            self.piece_sums.zero_()
        self.piece_sums.index_add_(1, self.piece_of_element, self.products)
        if not self.whole_rows:
            self.rows.sums.index_add_(1, self.row_of_piece, self.piece_sums)

    def spread(self, factor: PerRow) -> PerRow:
        """One number per row to one per element."""
        if not isinstance(factor, Tensor):
            return factor
        factor = factor.to(self.dtype)
        if not self.whole_rows:
            factor = factor.index_select(0, self.row_of_piece)
        return factor.index_select(0, self.piece_of_element)


class Flat(Backend):
    """Runs on any torch device that has the ordinary operators."""

    name = "flat"

    def suits(self, bucket: Bucket) -> bool:
        """Not for large tensors on a CPU, where copies cost more than they save."""
        elements = sum(param.numel() for param in bucket.params)
        return bucket.params[0].device.type != "cpu" or elements <= SMALL_ON_CPU * len(
            bucket.params
        )

    def prepare(self, bucket: Bucket) -> str | None:
        """It takes plain tensors, each with memory of its own: results are copied back at the end."""
        if not bucket.plain:
            return "a tensor subclass can only be updated one by one"
        for form in bucket.formats:
            if form.block > 1:
                return f"it does not know states kept as {form.name}"
        if any(param.is_neg() for param in bucket.params):
            return "a parameter is a lazily negated view"
        largest = max(sum(each.numels) for each in rounds(bucket))
        reserve(bucket.params[0].device, largest, math_dtype(bucket.params[0].dtype), 20)
        return None

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""
        for each in rounds(bucket):
            update = self._advance(bucket, each)
            if not bucket.variant.two_pass:
                keep, rate = bucket.scalars.keep, bucket.scalars.rate
            else:
                self._sum(bucket, each, update)
                each.rows.add_up(bucket.scalars)
                keep, rate = map(each.spread, each.rows.factors(bucket.scalars))
            self._apply(bucket, each, update, keep, rate)

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row."""
        sums = []
        for each in rounds(bucket):
            self._sum(bucket, each, self._advance(bucket, each))
            sums.append(each.rows.sums.clone())
        return torch.cat(sums, 1)

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Apply one (keep, rate) per row."""
        start = 0
        for each in rounds(bucket):
            param, grad, states = self._load(bucket, each)
            update = bucket.variant.direction(param, grad, states, bucket.scalars)
            stop = start + len(each.rows.tensor_of_row)
            factors = (f[start:stop] if isinstance(f, Tensor) else f for f in (keep, rate))
            self._apply(bucket, each, update, *map(each.spread, factors))
            start = stop

    def _load(self, bucket: Bucket, each: Round) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Fill the buffers."""
        part = slice(each.start, each.stop)
        masters = [] if bucket.masters is None else [bucket.masters]
        lists = [bucket.params, bucket.grads, *bucket.states, *masters]
        copy_lists(each.views, [tensors[part] for tensors in lists])
        param, grad, *states = each.buffers
        if not (isinstance(bucket.grad_scale, float) and bucket.grad_scale == 1.0):
            grad.mul_(bucket.grad_scale)
        if masters:
            param.copy_(master.adopted(param.to(bucket.params[0].dtype), states.pop()))
        return param, grad, states

    def _advance(self, bucket: Bucket, each: Round) -> Tensor:
        """Load, store the new states, return the update; buffers hold what is stored."""
        param, grad, states = self._load(bucket, each)
        variant, s = bucket.variant, bucket.scalars
        new = variant.advance(param, grad, states, s)
        update = variant.direction(param, grad, states, s) if variant.spec.looks_back else None
        if new:
            stored = [
                self._rounded(bucket, each, k, value, tensors[each.start].dtype)
                for k, (value, tensors) in enumerate(zip(new, bucket.states, strict=True), 1)
            ]
            torch._foreach_copy_(states, stored)
            part = slice(each.start, each.stop)
            views = each.views[2 : 2 + len(new)]
            copy_lists([tensors[part] for tensors in bucket.states], views)
        return variant.direction(param, grad, states, s) if update is None else update

    def _sum(self, bucket: Bucket, each: Round, update: Tensor) -> None:
        """Sums of products per row."""
        tensors = {"param": each.buffers[0], "grad": each.buffers[1], "update": update}
        for out, name in zip(each.product_rows, bucket.variant.spec.sums, strict=True):
            one, two = SUMS[name]
            torch.mul(tensors[one], tensors[two], out=out)
        each.add_rows()

    def _apply(
        self, bucket: Bucket, each: Round, update: Tensor, keep: PerRow, rate: PerRow
    ) -> None:
        """``param = keep * param - rate * update``, stored."""
        param = each.buffers[0]
        param.mul_(keep).sub_(rate * update)
        part = slice(each.start, each.stop)
        if bucket.masters is not None:
            each.buffers[-1].copy_(param)
            copy_lists([bucket.masters[part]], [each.views[-1]])
        elif bucket.rounding is not None:
            param.copy_(self._rounded(bucket, each, 0, param, bucket.params[0].dtype))
        copy_lists([bucket.params[part]], [each.views[0]])

    def _rounded(
        self, bucket: Bucket, each: Round, operand: int, value: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The value as it will be stored, in the type of the math."""
        if dtype is value.dtype:
            return value
        if bucket.rounding is None or dtype not in HALVES:
            return value.to(dtype).to(value.dtype)
        keys = torch.tensor(bucket.rounding.keys[operand][each.start : each.stop], device="cpu")
        key = keys.repeat_interleave(torch.tensor(each.numels, device="cpu")).to(each.device)
        return round_stochastic(value, dtype, random_bits(each.index, key))


def rounds(bucket: Bucket) -> list[Round]:
    """The rounds of a bucket; buffers of a list of shapes met before are used again."""
    # Of a DTensor the whole shape counts as well: lengths of rows are those over all shards.
    shapes = tuple(p.shape for p in bucket.params), tuple(bucket.shapes)
    key: Any = ("flat", bucket.params[0].device, bucket.params[0].dtype, shapes)
    memory = bucket.scratch
    if key not in memory:
        while len(memory) >= KEPT:
            memory.pop(next(iter(memory)))
        memory[key] = make_rounds(bucket)
    kept: list[Round] = memory[key]
    return kept


def make_rounds(bucket: Bucket) -> list[Round]:
    """Cut a bucket into rounds that share one piece of memory."""
    cuts = spans(bucket.params)
    size = max(sum(param.numel() for param in bucket.params[start:stop]) for start, stop in cuts)
    operands = 2 + len(bucket.states) + (bucket.masters is not None)
    memory = torch.empty(
        operands + len(bucket.variant.spec.sums),
        size,
        dtype=math_dtype(bucket.params[0].dtype),
        device=bucket.params[0].device,
    )
    return [Round(bucket, start, stop, memory) for start, stop in cuts]


def spans(params: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Cut a list of tensors into runs of at most ROUND elements (or one tensor)."""
    spans, start, size = [], 0, 0
    for i, param in enumerate(params):
        if i > start and size + param.numel() > ROUND:
            spans.append((start, i))
            start, size = i, 0
        size += param.numel()
    spans.append((start, len(params)))
    return spans


def copy_lists(targets: Sequence[list[Tensor]], sources: Sequence[list[Tensor]]) -> None:
    """Copy lists of tensors: one operator for all lists of the same types, as foreach kernels want them."""
    merged: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        to, of = merged.setdefault((target[0].dtype, source[0].dtype), ([], []))
        to.extend(target)
        of.extend(source)
    for to, of in merged.values():
        torch._foreach_copy_(to, of)
