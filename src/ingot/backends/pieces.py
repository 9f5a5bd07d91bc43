"""Lists of tensors that may be views of one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors


class Piece:
    """Tensors of one operand; ``flat`` is the memory they are views of, one after the other, if there is one."""

    def __init__(self, tensors: list[Tensor], flat: Tensor | None = None) -> None:
        self.tensors, self._flat = tensors, flat

    @classmethod
    def copy(cls, tensors: Sequence[Tensor], dtype: torch.dtype) -> Piece:
        """Copies in one new piece of memory, in row-major order whatever the layout."""
        piece = cls.new(tensors, dtype)
        torch._foreach_copy_(piece.tensors, list(tensors))
        return piece

    @classmethod
    def new(cls, like: Sequence[Tensor], dtype: torch.dtype, *, zero: bool = False) -> Piece:
        """New memory, shaped like these tensors, zero or not yet written."""
        make = torch.zeros if zero else torch.empty
        size = sum(tensor.numel() for tensor in like)
        return cls.view(make(size, dtype=dtype, device=like[0].device), like)

    @classmethod
    def view(cls, flat: Tensor, like: Sequence[Tensor]) -> Piece:
        """Views of some memory, shaped like these tensors."""
        return cls(list(_unflatten_dense_tensors(flat, like)), flat)

    def flat(self, dtype: torch.dtype) -> Tensor:
        """All elements as one vector: a copy, unless they are one piece already."""
        if self._flat is not None:
            return self._flat
        if len(self.tensors) == 1 and self.tensors[0].is_contiguous():
            return self.tensors[0].view(-1)
        return Piece.copy(self.tensors, dtype).flat(dtype)
