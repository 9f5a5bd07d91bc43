"""The operands of list operators: tensors where they are, or in the type of the math in one piece of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ingot.backends.pieces import Piece
from ingot.storage import master
from ingot.storage.floats import FloatFormat
from ingot.storage.format import Format
from ingot.storage.precision import math_dtype
from ingot.storage.rounding import HALVES, random_bits, round_stochastic

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

# Elements taken at a time: temporaries never have more (or than the largest tensor that cannot be cut). An operator of
# 64 MiB takes far longer than its launch.
ROUND = 1 << 24
# On the CPU the temporaries of large rounds can be new memory in every step, page by page. AdamW on 12 tensors of
# 768 x 3072, each size in a process of its own, one thread, processor time, best of 12 steps: 178 ms and 23,000 page
# faults with 2^24, 139 with 2^22, 141 with 2^20, 142 with 2^18, 175 with 2^16.
ROUND_ON_CPU = 1 << 20


class Unit(NamedTuple):
    """A tensor of a bucket, or some of its rows."""

    member: int  # its place in the bucket
    rows: slice | None = None

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Its part of the tensors of one operand."""
        return tensors[self.member] if self.rows is None else tensors[self.member][self.rows]


@lru_cache(maxsize=64)
def every(count: int) -> list[Unit]:
    """All tensors of a bucket of so many, in their order; nobody changes this list, by which they are recognized."""
    return [Unit(member) for member in range(count)]


def rounds_of(bucket: Bucket) -> list[tuple[list[Unit], int]]:
    """The rounds of an elementwise optimizer; whether all tensors fit into one is seen first, as it is quick."""
    sizes = [*map(Tensor.numel, bucket.params)]
    total, most = sum(sizes), limit(bucket)
    if all(sizes) and total <= most:
        return [(every(len(sizes)), total)]
    return rounds(units(bucket), most)


def units(bucket: Bucket) -> Iterator[tuple[Unit, int]]:
    """All units that have elements, with their number; of elementwise optimizers large tensors are cut."""
    most = limit(bucket)
    block = max((form.block for form in bucket.formats), default=1)
    for member, param in enumerate(bucket.params):
        numel = param.numel()
        if numel <= most or param.ndim == 0 or bucket.variant.two_pass:
            yield from [(Unit(member), numel)] if numel else []
            continue
        length = numel // param.shape[0]
        whole = block // gcd(block, length)  # rows that fill whole blocks
        step = max(most // length // whole, 1) * whole
        for start in range(0, param.shape[0], step):
            stop = min(start + step, param.shape[0])
            yield Unit(member, slice(start, stop)), length * (stop - start)


def limit(bucket: Bucket) -> int:
    """The elements of one round."""
    return ROUND_ON_CPU if bucket.params[0].device.type == "cpu" else ROUND


def rounds(sized: Iterator[tuple[Unit, int]] | Sequence[tuple[Unit, int]], most: int) -> list[Any]:
    """Lists of units of at most ``most`` elements together (or of one unit), each with their number."""
    result: list[tuple[list[Unit], int]] = []
    for unit, numel in sized:
        if not result or result[-1][1] + numel > most:
            result.append(([], 0))
        members, size = result[-1]
        members.append(unit)
        result[-1] = members, size + numel
    return result


class Operands:
    """The operands of one round, loaded; programs overwrite the parameter and the states.

    Attributes:
        param, grad, states: in the type of the math.
        own_grad: whether the gradient is a copy.
    """

    def __init__(self, bucket: Bucket, members: list[Unit]) -> None:
        self.bucket, self.members = bucket, members
        self.dtype = math_dtype(bucket.params[0].dtype)
        self._all = members is every(len(bucket.params))
        self._cut = not self._all and any(unit.rows is not None for unit in members)
        self._params = self._of(bucket.params)
        self.param = self._load_param()
        self.grad, self.own_grad = self._load_grad()
        self._parts = self._cut_states()
        self.states = [self._load(f, p) for f, p in zip(bucket.formats, self._parts, strict=True)]

    def _of(self, tensors: list[Tensor]) -> list[Tensor]:
        """The members' parts; the list itself if it is all of them, which costs nothing per tensor."""
        return tensors if self._all else [unit.of(tensors) for unit in self.members]

    def _cut_states(self) -> list[list[Sequence[Tensor]]]:
        """Per state the lists of its parts."""
        every = iter(self.bucket.states)
        states = [[next(every) for _ in form.parts] for form in self.bucket.formats]
        if not self._cut:
            return [[self._of(tensors) for tensors in parts] for parts in states]
        return [
            [*zip(*(self._cut_unit(form, parts, unit) for unit in self.members), strict=True)]
            for form, parts in zip(self.bucket.formats, states, strict=True)
        ]

    @staticmethod
    def _cut_unit(form: Format, parts: list[list[Tensor]], unit: Unit) -> Sequence[Tensor]:
        """The parts of one unit."""
        whole = [tensors[unit.member] for tensors in parts]
        return whole if unit.rows is None else form.cut(whole, unit.rows)

    def _load_param(self) -> Piece:
        """From the master copies, where nobody else changed the parameter."""
        if self.bucket.masters is None:
            return self._load_floats(self._params)
        stored = Piece.copy(self._params, self._params[0].dtype).flat(self.dtype)
        masters = Piece.copy(self._of(self.bucket.masters), self.dtype).flat(self.dtype)
        return Piece.view(master.adopted(stored, masters), self._params)

    def _load_grad(self) -> tuple[list[Tensor], bool]:
        """The gradients, scaled."""
        grads, scale = self._of(self.bucket.grads), self.bucket.grad_scale
        own = grads[0].dtype is not self.dtype
        if own:
            grads = Piece.copy(grads, self.dtype).tensors
        if isinstance(scale, float) and scale == 1.0:
            return grads, own
        if isinstance(scale, Tensor):
            scale = scale.to(self.dtype)  # a 0-dim gradient would take on the type of a wider scale
        if own:
            torch._foreach_mul_(grads, scale)
            return grads, own
        return list(torch._foreach_mul(grads, scale)), True

    def _load(self, form: Format, parts: list[Sequence[Tensor]]) -> Piece:
        if isinstance(form, FloatFormat):
            return self._load_floats(parts[0])
        return Piece([form.load(each, self.dtype) for each in zip(*parts, strict=True)])

    def _load_floats(self, tensors: Sequence[Tensor]) -> Piece:
        """The tensors themselves, if they have the type of the math."""
        same = tensors[0].dtype is self.dtype
        return Piece(list(tensors)) if same else Piece.copy(tensors, self.dtype)

    def store_states(self, *, reload: bool) -> None:
        """Write the states that are not where they belong; ``reload`` reads again what was stored, with fewer digits.

        Formats that let elementwise optimizers go on with all digits are not read again for those.
        """
        pairs = zip(self.bucket.formats, self._parts, strict=True)
        for operand, (form, parts) in enumerate(pairs, 1):
            loaded = self.states[operand - 1]
            again = reload and (self.bucket.variant.two_pass or not form.unrounded)
            if isinstance(form, FloatFormat):
                self._store_floats(parts[0], loaded, operand)
                if again and parts[0][0].dtype is not self.dtype:
                    torch._foreach_copy_(loaded.tensors, list(parts[0]))
                continue
            for i, value in enumerate(loaded.tensors):
                form.store([each[i] for each in parts], value, self._bits_of(operand, i))
            if again:
                self.states[operand - 1] = self._load(form, parts)

    def store_param(self) -> None:
        """Write the parameter, and its master copy if there is one."""
        if self.bucket.masters is None:
            self._store_floats(self._params, self.param, 0)
        else:
            torch._foreach_copy_(self._of(self.bucket.masters), self.param.tensors)
            torch._foreach_copy_(self._params, self.param.tensors)

    def _store_floats(self, stored: Sequence[Tensor], loaded: Piece, operand: int) -> None:
        dtype = stored[0].dtype
        if dtype is self.dtype:
            return
        if self.bucket.rounding is not None and dtype in HALVES:
            bits = self._bits(operand)
            rounded = round_stochastic(loaded.flat(self.dtype), dtype, bits)
            loaded = Piece.view(rounded, stored)
        torch._foreach_copy_(list(stored), loaded.tensors)

    def _bits(self, operand: int) -> Tensor:
        """Random bits for all elements of an operand, one after the other."""
        assert self.bucket.rounding is not None
        keys, starts, at = [], [], 0
        for unit, param in zip(self.members, self._params, strict=True):
            keys.append(self.bucket.rounding.keys[operand][unit.member])
            starts.append(self._first(unit) - at)
            at += param.numel()
        index = Piece.view(torch.arange(at, device=self._params[0].device), self._params)
        key = Piece.view(torch.zeros_like(index.flat(torch.int64)), self._params)
        torch._foreach_add_(index.tensors, starts)
        torch._foreach_add_(key.tensors, keys)
        return random_bits(index.flat(torch.int64), key.flat(torch.int64))

    def _first(self, unit: Unit) -> int:
        """The row-major index of the first element of a unit in its tensor."""
        if unit.rows is None:
            return 0
        whole = self.bucket.params[unit.member]
        return int(unit.rows.start) * (whole.numel() // whole.shape[0])

    def _bits_of(self, operand: int, place: int) -> Any:
        """The same for one tensor, as formats ask for them."""
        rounding = self.bucket.rounding
        if rounding is None:
            return None
        unit, param = self.members[place], self._params[place]
        return lambda: rounding.bits(operand, unit.member, self._first(unit), param)
