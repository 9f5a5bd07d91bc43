"""The reference backend: the declared math on torch tensors, one after the other; the ground truth of the tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ingot.declare.sums import SUMS
from ingot.reductions.rows import Factor, Rows
from ingot.sharding.dtensor import sum_dtype
from ingot.storage.precision import HALVES, math_dtype
from ingot.storage.rounding import random_bits, round_stochastic

if TYPE_CHECKING:
    from ingot.step.plan import Bucket

ANYWHERE = "any torch device"


class Operands:
    """One tensor of a bucket: what is loaded from it and stored into it, with the conversions between."""

    def __init__(self, bucket: Bucket, index: int) -> None:
        self.bucket, self.index = bucket, index
        self.stored = bucket.params[index]
        self.dtype = math_dtype(self.stored.dtype)

    def param(self) -> Tensor:
        """The parameter in the type of the math; from its master copy, unless someone else changed it."""
        if self.bucket.masters is None:
            return self.stored.to(self.dtype)
        master = self.bucket.masters[self.index]
        return torch.where(master.to(self.stored.dtype) == self.stored, master, self.stored)

    def grad(self) -> Tensor:
        """The gradient, scaled."""
        scale = self.bucket.grad_scale
        if isinstance(scale, Tensor):
            scale = scale.to(self.dtype)  # a 0-dim gradient would take on the type of a wider scale
        return self.bucket.grads[self.index].to(self.dtype) * scale

    def states(self) -> list[Tensor]:
        """The states in the type of the math."""
        return [state[self.index].to(self.dtype) for state in self.bucket.states]

    def store_states(self, values: Sequence[Tensor]) -> None:
        """Write new states."""
        for operand, (state, value) in enumerate(zip(self.bucket.states, values, strict=True), 1):
            self._store(operand, state[self.index], value)

    def store_param(self, value: Tensor) -> None:
        """Write the parameter, and its master copy if there is one."""
        if self.bucket.masters is None:
            self._store(0, self.stored, value)
        else:
            self.bucket.masters[self.index].copy_(value)
            self.stored.copy_(value)

    def _store(self, operand: int, target: Tensor, value: Tensor) -> None:
        rounding = self.bucket.rounding
        if rounding is not None and target.dtype in HALVES:
            index = torch.arange(value.numel(), device=value.device).reshape(value.shape)
            bits = random_bits(index, rounding.keys[operand][self.index])
            value = round_stochastic(value.contiguous(), target.dtype, bits)
        target.copy_(value)


class Reference:
    """Runs on any torch device; the number of operators grows with the number of tensors."""

    name = "reference"
    devices = ANYWHERE
    hint = "It is part of the package."

    def unavailable(self) -> str | None:
        """It is always there."""
        return None

    def suits(self, bucket: Bucket) -> bool:
        """It takes what is left."""
        return True

    def prepare(self, bucket: Bucket) -> str | None:
        """It takes everything."""
        return None

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""
        if bucket.variant.two_pass:
            sums = self.first(bucket)
            rows = Rows(bucket, sums.dtype)
            rows.sums.copy_(sums)
            rows.add_up(bucket.scalars)
            self.second(bucket, *rows.factors(bucket.scalars))
            return
        s = bucket.scalars
        for i in range(len(bucket.params)):
            operands = Operands(bucket, i)
            param, update = self._advance(operands)
            operands.store_param(s.keep * param - s.rate * update)

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row."""
        spec = bucket.variant.spec
        columns = []
        for i in range(len(bucket.params)):
            operands = Operands(bucket, i)
            param, update = self._advance(operands)
            tensors = {"param": param, "grad": operands.grad(), "update": update}
            rows = row_count(bucket, i)
            columns.append(
                torch.stack(
                    [
                        (tensors[one] * tensors[two])
                        .reshape(rows, param.numel() // max(rows, 1))
                        .sum(1, dtype=sum_dtype(param))
                        for one, two in map(SUMS.__getitem__, spec.sums)
                    ]
                )
            )
        return torch.cat(columns, 1)

    def second(self, bucket: Bucket, keep: Factor, rate: Factor) -> None:
        """Apply one (keep, rate) per row."""
        start = 0
        for i, stored in enumerate(bucket.params):
            operands = Operands(bucket, i)
            param, grad, states = operands.param(), operands.grad(), operands.states()
            update = bucket.variant.direction(param, grad, states, bucket.scalars)
            rows = row_count(bucket, i)
            shape = (rows,) + (1,) * (stored.ndim - 1) if stored.ndim else ()
            k, r = (
                f[start : start + rows].to(param.dtype).reshape(shape)
                if isinstance(f, Tensor)
                else f
                for f in (keep, rate)
            )
            operands.store_param(k * param - r * update)
            start += rows

    def _advance(self, operands: Operands) -> tuple[Tensor, Tensor]:
        """Store the new states; return the old parameter and the update."""
        variant, s = operands.bucket.variant, operands.bucket.scalars
        param, grad = operands.param(), operands.grad()
        states = operands.states()
        new = variant.advance(param, grad, states, s)
        if variant.spec.looks_back:
            update = variant.direction(param, grad, states, s)
            operands.store_states(new)
            return param, update
        operands.store_states(new)
        return param, variant.direction(param, grad, operands.states(), s)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of squares, as a 0-dim tensor on the device of the first."""
        norms = [
            torch.stack(torch._foreach_norm(each, 2, dtype=sum_dtype(each[0]))).square().sum()
            for each in by_device_and_dtype(tensors)
        ]
        if len(norms) == 1:
            return norms[0]
        return torch.stack([norm.to(norms[0]) for norm in norms]).sum()

    def largest(self, tensors: Sequence[Tensor]) -> Tensor:
        """The largest magnitude, as a 0-dim tensor on the device of the first."""
        norms = [
            torch.stack(torch._foreach_norm(each, torch.inf, dtype=sum_dtype(each[0]))).max()
            for each in by_device_and_dtype([t for t in tensors if t.numel()])
        ]
        return (
            torch.stack([norm.to(norms[0]) for norm in norms]).max()
            if norms
            else torch.zeros((), device="cpu")
        )

    def scale_(self, tensors: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply in place."""
        for each in by_device_and_dtype(tensors):
            torch._foreach_mul_(each, factor.to(each[0].device, math_dtype(each[0].dtype)))


def row_count(bucket: Bucket, index: int) -> int:
    """The number of local rows of a tensor."""
    split = bucket.variant.spec.rows and bucket.owners[index].ndim > 1
    return bucket.params[index].shape[0] if split else 1


def by_device_and_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Lists that torch's foreach operators take in one call."""
    lists: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        lists[tensor.device, tensor.dtype].append(tensor)
    return list(lists.values())
