"""How one number per element is kept between steps: the protocol that all formats follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# Random bits for every element, as int64; asked for only where something is rounded stochastically.
Bits = Callable[[], Tensor]


def useless(tensors: Sequence[Any]) -> str | None:
    """Why tensors hold no numbers that a step could read and write, whatever their format; None if they do."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            return f"of layout {tensor.layout}, a sparse one"
        if isinstance(tensor, Tensor) and tensor.is_meta:
            return "on the device meta, without values"
    return None


class Format(Protocol):
    """How one state of a parameter is kept: in which tensors, and how they become numbers of the math and back.

    A format holds no tensor: one object serves all states kept that way, so formats are compared by identity.

    Attributes:
        name: what users and messages call it.
        parts: the suffixes of its entries in ``optimizer.state[param]``; the first is empty, so that the first
            entry carries the name of the state. That entry has the shape of the parameter and, where that is a
            DTensor, its placements; further entries are plain tensors about the local part.
        rounds: whether storing loses digits, so that stochastic rounding has something to do.
        unrounded: whether the update of an elementwise optimizer is computed from the new states before they are
            rounded; otherwise, and always in two passes, it is computed from the states as they are stored. All
            states of a parameter agree in this.
        block: how many elements, consecutive in row-major order, can only be stored together.
    """

    name: str
    parts: tuple[str, ...]
    rounds: bool
    unrounded: bool
    block: int

    def new(self, param: Tensor, start: float) -> list[Tensor]:
        """The tensors of a state that is ``start`` everywhere."""

    def problem(self, param: Tensor, tensors: Sequence[Any]) -> str | None:
        """Why these cannot be the tensors of a state of ``param``; None if they can."""

    def brought(self, param: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors on the parameter's device and in the types of this format; the same objects if they are."""

    def cut(self, tensors: Sequence[Tensor], rows: slice) -> list[Tensor]:
        """The tensors, local ones, of some rows, which must begin and end where blocks do."""

    def load(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The values in the type of the math, shaped like the parameter."""

    def store(self, tensors: Sequence[Tensor], value: Tensor, bits: Bits | None) -> None:
        """Write values; ``bits`` for stochastic rounding, None to round to nearest."""
