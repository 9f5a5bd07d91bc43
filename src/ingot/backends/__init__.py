"""The table of backends, in order of preference, and the choice among them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ingot.backends.backend import Backend
from ingot.backends.lists import Lists
from ingot.backends.native import NATIVE
from ingot.backends.reference import Reference
from ingot.backends.triton import TRITON

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket


class BackendInfo(NamedTuple):
    """One row of ``ingot info``."""

    name: str
    available: bool
    reason: str
    hint: str
    devices: str


ANYWHERE = "any torch device"
LISTS = Lists()
REFERENCE = Reference()
TABLE: tuple[Backend, ...] = (NATIVE, TRITON, LISTS, REFERENCE)
OTHER_NAMES = {"flat": "lists"}  # names of earlier versions


def named(name: str) -> Backend:
    """The backend a user asked for by name; raises if there is none or it cannot be used here."""
    known = {backend.name: backend for backend in TABLE}
    name = OTHER_NAMES.get(name, name)
    if name not in known:
        raise ValueError(f"backend={name!r} is not known; known are {', '.join(map(repr, known))}")
    reason = known[name].unavailable()
    if reason:
        raise ValueError(f"backend={name!r} is not available: {reason}. {known[name].hint}")
    return known[name]


def choose(bucket: Bucket, name: str | None) -> Backend:
    """The first backend that takes the bucket, or the named one; it is then prepared for it."""
    device = bucket.params[0].device
    if name is not None:
        backend = named(name)
        reason = backend.prepare(bucket) if backend.runs_on(device) else other_device(backend)
        if reason:
            raise RuntimeError(f"backend={name!r} cannot run this step: {reason}")
        return backend
    if device.type == "cpu":
        warn_without_core(NATIVE.unavailable())
    for backend in TABLE:
        if not backend.runs_on(device) or backend.unavailable() is not None:
            continue
        if backend.suits(bucket) and backend.prepare(bucket) is None:
            return backend
    raise AssertionError("the reference backend takes everything")


def other_device(backend: Backend) -> str:
    """Why a backend is not for the tensors of some device."""
    return f"for {' and '.join(backend.devices or ())} tensors only"


@cache
def warn_without_core(reason: str | None) -> None:
    """Say once that steps on the CPU could be faster. Not called where a backend was named."""
    if reason is not None:
        warnings.warn(
            f"ingot: {reason}; steps on the CPU take several times longer without it. {NATIVE.hint}",
            stacklevel=2,
        )


def describe() -> list[BackendInfo]:
    """Every backend and whether it is there."""
    rows = []
    for backend in TABLE:
        reason = backend.unavailable()
        where = ANYWHERE if backend.devices is None else ", ".join(backend.devices)
        rows.append(BackendInfo(backend.name, reason is None, reason or "", backend.hint, where))
    return rows


def choose_for(device: torch.device | str) -> tuple[str, str]:
    """``(name, why)`` of the backend taken for ordinary tensors on a device; why, below a list of them."""
    skipped: list[str] = []
    for backend in TABLE:
        reason = backend.unavailable()
        if reason is None and not backend.runs_on(torch.device(device)):
            reason = other_device(backend)
        if reason is None:
            kind = torch.device(device).type
            why = [*skipped, f"the first of the list above that runs on {kind}"]
            return backend.name, "; ".join(why)
        skipped.append(f"not {backend.name}: {reason}")
    raise AssertionError("the reference backend takes everything")


def fallback(tensors: Sequence[Tensor]) -> Backend:
    """The backend that measures and scales lists of tensors from anywhere."""
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
    return NATIVE if on_cpu and NATIVE.unavailable() is None else REFERENCE


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of all elements, as a 0-dim tensor."""
    return fallback(tensors).squares(tensors)


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """The largest magnitude, NaN if there is one, as a 0-dim tensor."""
    return fallback(tensors).largest(tensors)


def scale_(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all tensors in place."""
    fallback(tensors).scale_(tensors, factor)
