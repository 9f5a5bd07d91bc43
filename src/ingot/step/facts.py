"""What a remembered outline depends on: types, devices, shapes and strides of tensors, read again in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
IS_NESTED = attrgetter("is_nested")


class Facts(NamedTuple):
    """What was found about the tensors of a step.

    Attributes:
        known: everything an outline depends on, to be compared with ``==``; None if some tensor is of a kind that
            must be looked at in every step: a subclass, a complex or lazily negated one; or if one that is written was
            made in ``torch.inference_mode()``.
        overlap: whether a tensor that is written lies between the addresses of another.
        addresses: where all tensors begin; None if not asked in Python.
        guard: tells in one call whether all tensors are as they were found; None if not asked in Python, or if there is
            no such thing for these tensors.
    """

    known: Any
    overlap: bool
    addresses: list[int] | None = None
    guard: Any = None


def find_facts(written: list[list[Tensor]], read: list[Tensor], last: Facts | None = None) -> Facts:
    """Look at the tensors a step writes and those it only reads; in C where the core is there.

    In Python, each is looked at only if the guard sees a difference from ``last``, and overlaps are looked for only if
    there is one: tensors that are laid out as they were, where they were, overlap as they did.
    """
    tensors = [*chain(*written, read)]
    guard = None if last is None else last.guard
    if last is not None and guard is not None and is_unchanged(guard, tensors, chain(*written)):
        addresses = [*map(Tensor.data_ptr, tensors)]
        if addresses == last.addresses:
            return last
        return last._replace(overlap=any_overlap(written, read), addresses=addresses)
    if not all(map(is_ordinary, written)):
        return Facts(None, overlap=True)  # the step is planned anew, or refused
    if NATIVE.unavailable() is None:
        found = NATIVE.facts(written, read)
        if found is not None:
            return Facts(*found)
    known = [facts_of(tensors) for tensors in (*written, read)]
    if any(each is None for each in known):
        return Facts(None, any_overlap(written, read))
    addresses = [*map(Tensor.data_ptr, tensors)]
    if last is None or known != last.known:
        return Facts(known, any_overlap(written, read), addresses, guard_of(tensors))
    overlap = last.overlap if addresses == last.addresses else any_overlap(written, read)
    # A guard that failed saw what does not matter here, as requires_grad; one that could not be made still cannot.
    guard = None if guard is None else guard_of(tensors)
    return Facts(known, overlap, addresses, guard)


def is_ordinary(tensors: Sequence[Any]) -> bool:
    """Whether all of these are tensors that may be changed: none was made in ``torch.inference_mode()``."""
    try:
        return not any(map(Tensor.is_inference, tensors))
    except TypeError:  # a user has put something else there
        return False


def guard_of(tensors: Sequence[Tensor], *, layout: bool = True) -> Any:
    """What torch.compile asks before it runs compiled code again: type, dispatch keys, device, shape and strides.

    0.05 us per tensor, where Python needs 0.6. Also whether it requires a gradient, and what modes this thread is in.
    Without ``layout`` it asks for neither shape nor strides. None if this torch has no such thing, or if a tensor is
    there twice; it keeps no tensor alive.
    """
    try:
        shapes: list[Any] = [[*each.shape] if layout else [None] * each.ndim for each in tensors]
        strides: list[Any] = [
            [*each.stride()] if layout else [None] * each.ndim for each in tensors
        ]
        guard = torch._C._dynamo.guards.TensorGuards(
            *tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides
        )
    except (AttributeError, TypeError, RuntimeError):
        return None
    return guard if is_unchanged(guard, tensors) else None


def is_unchanged(guard: Any, tensors: Sequence[Any], written: Iterable[Any] = ()) -> bool:
    """Whether all of these are as the tensors the guard was made of; False if one is no tensor.

    A nested tensor would make the guard end the process. Only a state can be one: torch takes none as gradient. So
    those that are ``written`` are asked before.
    """
    try:
        return not any(map(IS_NESTED, written)) and guard.check(*tensors) is True
    except (AttributeError, TypeError, RuntimeError):
        return False


def facts_of(tensors: Sequence[Tensor]) -> Any:
    """Type, device, shape and strides of tensors, read in Python: 1 us per tensor, where C needs 0.1.

    None if these do not say all that planning must know of one of them.
    """
    if not PLAIN.issuperset(map(type, tensors)) or not STRIDED.issuperset(map(LAYOUT, tensors)):
        return None
    if any(any(map(is_special, tensors)) for is_special in SPECIAL):
        return None
    return [*map(LOOKS, tensors)], [*map(Tensor.stride, tensors)]
