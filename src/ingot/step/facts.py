"""What a remembered outline depends on: types, devices, shapes and strides of tensors, read again in every step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.backends.native import NATIVE
from ingot.step.overlap import any_overlap
from ingot.step.roster import PLAIN

# Mapped over lists of tensors, so that no Python code runs per tensor.
LAYOUT, LOOKS = attrgetter("layout"), attrgetter("dtype", "device", "shape")
SPECIAL = attrgetter("is_meta"), Tensor.is_complex, Tensor.is_neg
STRIDED = {torch.strided}


class Facts(NamedTuple):
    """What was found about the tensors of a step.

    Attributes:
        known: everything an outline depends on, to be compared with ``==``; None if some tensor is of a kind that
            must be looked at in every step: a subclass, a complex or lazily negated one.
        overlap: whether a tensor that is written lies between the addresses of another.
        addresses: where all tensors begin; None if not asked in Python.
    """

    known: Any
    overlap: bool
    addresses: list[int] | None = None


def find_facts(written: list[list[Tensor]], read: list[Tensor], last: Facts | None = None) -> Facts:
    """Look at the tensors a step writes and those it only reads; in C where the core is there.

    In Python, overlaps are looked for only if something differs from ``last``: tensors that are laid out as they were,
    where they were, overlap as they did.
    """
    if NATIVE.unavailable() is None:
        found = NATIVE.facts(written, read)
        if found is not None:
            return Facts(*found)
    known = [facts_of(tensors) for tensors in (*written, read)]
    if any(each is None for each in known):
        return Facts(None, any_overlap(written, read))
    addresses = [*map(Tensor.data_ptr, chain(*written, read))]
    if last is not None and addresses == last.addresses and known == last.known:
        return last
    return Facts(known, any_overlap(written, read), addresses)


def facts_of(tensors: Sequence[Tensor]) -> Any:
    """Type, device, shape and strides of tensors, read in Python: 1 us per tensor, where C needs 0.1.

    None if these do not say all that planning must know of one of them.
    """
    if not PLAIN.issuperset(map(type, tensors)) or not STRIDED.issuperset(map(LAYOUT, tensors)):
        return None
    if any(any(map(is_special, tensors)) for is_special in SPECIAL):
        return None
    return [*map(LOOKS, tensors)], [*map(Tensor.stride, tensors)]
