"""One step of one bucket: the arguments of its kernels, and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.backends.triton_kernels import build
from ingot.backends.triton_kernels.layout import (
    CHUNK,
    ROW_BLOCK,
    Addresses,
    Layout,
    Rows,
    layout_of,
)
from ingot.backends.triton_kernels.tile import Types

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int8: "int8",  # codes of states
    torch.uint8: "uint8",
}
# Rows handled at a time between the passes, for optimizers that do not look at rows.
ONE_ROW_BLOCK = 16


class Step:
    """Everything a step of a bucket needs but the final factor of the gradients, which is known last.

    Attributes:
        first_pass: the kernels of the first pass, in their order; none for elementwise optimizers.
    """

    def __init__(self, bucket: Bucket, found: Addresses, operands: int) -> None:
        self.layout: Layout = layout_of(bucket, found.sizes)
        self.spec, s = bucket.variant.spec, bucket.scalars
        loaded = frozenset(name for name in s._fields if isinstance(getattr(s, name), Tensor))
        self.kernels = {**build.kernels(bucket.variant, s._fields, types_of(bucket), loaded)}
        self.first_pass = [role for role in self.kernels if role in ("advance", "first")]
        if isinstance(self.layout, Rows) and self.layout.split_count:
            self.kernels["collect"] = build.collect()
            self.first_pass.append("collect")
        self.scalars = tuple(s)
        # Kernels are compiled with it, and started with it too unless gradients are clipped or unscaled: nothing is
        # made for it after the commit.
        self.grad_scale = self.layout.scale_of(bucket.grad_scale)
        self.table = self.layout.table(found.pointers, operands)
        self.tensors = len(bucket.params)
        self.rounding: tuple[Any, ...] = ()
        if bucket.rounding is not None:
            places = self.layout.places_of(bucket.rounding.ordinals, bucket.rounding.starts)
            # The same 32 bits as a signed number: Triton gives arguments of 2^31 and above another type.
            self.rounding = places, (bucket.rounding.base ^ 1 << 31) - (1 << 31)

    @property
    def rows(self) -> Rows:
        """The layout of a two-pass optimizer."""
        assert isinstance(self.layout, Rows)
        return self.layout

    def problem(self) -> str | None:
        """Compile every kernel of the step; why one cannot be."""
        for role, kernel in self.kernels.items():
            _, arguments, constants = self._call(role, self.grad_scale)
            problem = kernel.problem(self.layout.device, arguments, constants)
            if problem:
                return problem
        return None

    def launch(self, roles: list[str], grad_scale: float | Tensor) -> None:
        """Start kernels, one after the other."""
        scale = self.layout.scale_of(grad_scale)
        for role in roles:
            self.kernels[role].launch(*self._call(role, scale))

    def _call(self, role: str, scale: Tensor) -> tuple[int, tuple[Any, ...], dict[str, int]]:
        """The number of programs, the arguments and the constants of a kernel."""
        elements = {"CHUNK": CHUNK, "BLOCK": self.layout.block}
        numbers = *self.rounding, scale, *self.scalars
        if role == "elementwise":
            own = self.table, self.layout.sizes, self.layout.items, self.tensors
            return self.layout.count, (*own, *numbers), elements
        rows = self.rows
        if role == "advance":
            own = self.table, rows.sizes, rows.chunks, self.tensors
            return rows.chunk_count, (*own, *numbers), elements
        if role == "collect":
            constants = {"SUMS": len(self.spec.sums), "BLOCK": ROW_BLOCK}
            return rows.split_count, (rows.values, rows.width, rows.split), constants
        if role == "between":
            block = ROW_BLOCK if self.spec.rows else ONE_ROW_BLOCK
            found = rows.first_rows, rows.roots, rows.values, rows.width, rows.factors, rows.lines
            return self.tensors, (*found, *self.scalars), {"BLOCK": block}
        tables = self.table, rows.sizes, rows.lengths, rows.items, self.tensors
        sums = (rows.values, rows.width) if role == "first" else (rows.factors, rows.lines)
        return rows.count, (*tables, *sums, *numbers), elements


def types_of(bucket: Bucket) -> Types:
    """How the numbers of a bucket are stored."""
    return Types(
        NAMES[bucket.params[0].dtype],
        NAMES[bucket.grads[0].dtype],
        tuple(NAMES[parts[0].dtype] for parts in bucket.parts_of(0)),
        bucket.masters is not None,
        bucket.rounding is not None,
    )
