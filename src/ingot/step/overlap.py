"""What strides say about a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ingot.sharding.dtensor import local


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of a strided tensor share memory, as those of an expanded one do."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return False
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    reach, nested = 0, True  # the largest offset of the dimensions so far
    for stride, size in dims:
        nested = nested and stride > reach
        reach += (size - 1) * stride
    if nested:
        return False
    if any(stride == 0 for stride, _ in dims):
        return True
    offsets = torch.arange(reach + 1, device="cpu").as_strided(tensor.shape, tensor.stride())
    return int(offsets.unique().numel()) < tensor.numel()


def share_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether one tensor of a device begins before another ends, as two parameters made from one tensor do."""
    extents = []
    for tensor in tensors:
        if tensor.numel():
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            extents.append((begin, begin + (last + 1) * tensor.element_size()))
    extents.sort()
    return any(second[0] < first[1] for first, second in pairwise(extents))


def refuse_overlap(where: object, tensor: Tensor) -> None:
    """Refuse a tensor that cannot be written to, because one element would overwrite another."""
    if overlaps_itself(local(tensor)):
        raise RuntimeError(
            f"{where}: some of its elements share memory (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}); clone() it first"
        )
