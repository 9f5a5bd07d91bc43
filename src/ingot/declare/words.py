"""The words of declared math, on torch tensors; other backends give the same words their own meaning."""

import torch
from torch import Tensor, sqrt, where
from torch import abs as absolute

__all__ = ["absolute", "maximum", "sqrt", "where"]


def maximum(a: Tensor, b: Tensor | float) -> Tensor:
    """The larger of two, NaN if either is; the second may be a constant."""
    return torch.maximum(a, b) if isinstance(b, Tensor) else torch.clamp(a, min=b)
