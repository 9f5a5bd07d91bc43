"""The words of declared math, on torch tensors; other backends give the same words their own meaning."""

import torch
from torch import Tensor, where
from torch import abs as absolute

__all__ = ["absolute", "maximum", "sqrt", "where"]


def maximum(a: Tensor, b: Tensor | float) -> Tensor:
    """The larger of two, NaN if either is; the second may be a constant."""
    return torch.maximum(a, b) if isinstance(b, Tensor) else torch.clamp(a, min=b)


def sqrt(x: Tensor) -> Tensor:
    """The correctly rounded square root, as in every other backend.

    torch's own for float32 on the CPU is MKL's: which elements it rounds to the wrong neighbour, and how many, differs
    between processors. The root in float64 is never close enough to the middle of two float32 numbers for that.
    """
    if isinstance(x, Tensor) and x.dtype is torch.float32 and x.device.type == "cpu":
        return x.double().sqrt_().float()
    return torch.sqrt(x)
