"""States kept as floating-point (or complex) numbers, one tensor each, shaped like their parameter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.storage.format import Bits
from ingot.storage.rounding import HALVES, round_stochastic


class FloatFormat:
    """One tensor of one type; made by :func:`floats`, so that equal formats are the same object."""

    parts: tuple[str, ...] = ("",)
    unrounded = False
    block = 1

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.name = str(dtype).removeprefix("torch.")
        self.rounds = dtype in HALVES

    def __repr__(self) -> str:
        return f"FloatFormat({self.dtype})"

    def new(self, param: Tensor, start: float) -> list[Tensor]:
        """A tensor laid out in memory like the parameter."""
        preserve = torch.preserve_format
        state = torch.zeros_like(param, dtype=self.dtype, memory_format=preserve)
        if start:  # the state of a complex number is that of two real ones
            state.fill_(complex(start, start) if state.is_complex() else start)
        return [state]

    def problem(self, param: Tensor, tensors: Sequence[Any]) -> str | None:
        """A state has the shape of its parameter; the codes of another format are no values."""
        (tensor,) = tensors
        if not isinstance(tensor, Tensor):
            return type(tensor).__name__
        if tensor.shape != param.shape:
            return str(tuple(tensor.shape))
        # What a complex number has beside its real part would be dropped without a word.
        fits = tensor.is_floating_point() or (tensor.is_complex() and self.dtype.is_complex)
        return None if fits else f"of {tensor.dtype}, not {self.dtype}"

    def brought(self, param: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """An ordinary tensor: no inference tensor, which nothing may change, and no lazy view."""
        (tensor,) = tensors
        if tensor.device != param.device or tensor.dtype != self.dtype:
            tensor = tensor.to(device=param.device, dtype=self.dtype)
        if tensor.is_inference():
            tensor = tensor.clone()
        return [resolved(tensor)]

    def cut(self, tensors: Sequence[Tensor], rows: slice) -> list[Tensor]:
        """The tensor of some rows."""
        return [tensors[0][rows]]

    def load(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The values in the type of the math."""
        return tensors[0].to(dtype)

    def store(self, tensors: Sequence[Tensor], value: Tensor, bits: Bits | None) -> None:
        """Write values, rounded where the type has fewer digits."""
        (target,) = tensors
        if bits is not None and target.dtype in HALVES:
            value = round_stochastic(value.contiguous(), target.dtype, bits())
        target.copy_(value)


@cache
def floats(dtype: torch.dtype) -> FloatFormat:
    """The format of one type."""
    return FloatFormat(dtype)


def resolved(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy that is no lazily conjugated or negated view: backends see only the memory."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.resolve_conj().resolve_neg() if lazy else tensor
