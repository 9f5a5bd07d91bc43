"""What a remembered outline depends on: types, devices, shapes and strides of tensors, read again in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.backends.native import NATIVE
from ingot.step.overlap import any_overlap
from ingot.step.roster import PLAIN


class Facts(NamedTuple):
    """What was found about the tensors of a step.

    Attributes:
        known: everything an outline depends on, to be compared with ``==``; None if some tensor is of a kind that
            must be looked at in every step: a subclass, a complex or lazily negated one.
        overlap: whether a tensor that is written lies between the addresses of another.
    """

    known: Any
    overlap: bool


def find_facts(written: list[list[Tensor]], read: list[Tensor]) -> Facts:
    """Look at the tensors a step writes and those it only reads; in C where the core is there."""
    if NATIVE.unavailable() is None:
        found = NATIVE.facts(written, read)
        if found is not None:
            return Facts(*found)
    known = [facts_of(tensors) for tensors in (*written, read)]
    return Facts(
        known if all(each is not None for each in known) else None, any_overlap(written, read)
    )


def facts_of(tensors: Sequence[Tensor]) -> Any:
    """Type, device, shape and strides of tensors, read in Python: 2 us per tensor, where C needs 0.1."""
    if not PLAIN.issuperset(map(type, tensors)):
        return None
    if any(is_special(t) for t in tensors):
        return None
    return [(t.dtype, t.device, t.shape, t.stride()) for t in tensors]


def is_special(tensor: Tensor) -> bool:
    """Whether type, device, shape and strides do not say all that planning must know of a tensor."""
    sparse = tensor.layout is not torch.strided
    return sparse or tensor.is_meta or tensor.is_complex() or tensor.is_neg()
