"""The table of backends, in order of preference, and the choice among them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from ingot.backends.flat import Flat
from ingot.backends.native import NATIVE
from ingot.backends.reference import ANYWHERE, Reference

if TYPE_CHECKING:
    from ingot.reductions.rows import Factor
    from ingot.step.plan import Bucket


class Backend(Protocol):
    """What a backend provides. It keeps nothing between steps but what it puts into ``bucket.memory``."""

    name: str
    devices: str  # a device type, or ANYWHERE
    hint: str  # how to get it

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine; None if it can."""

    def suits(self, bucket: Bucket) -> bool:
        """Whether it is the better choice, compared with those after it; not asked if a backend was named."""

    def prepare(self, bucket: Bucket) -> str | None:
        """Get ready to run a bucket, changing none of its tensors; or say why that cannot be."""

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""

    def first(self, bucket: Bucket) -> Tensor:
        """First pass of a sharded bucket: advance the states; return local sums, [names, rows]."""

    def second(self, bucket: Bucket, keep: Factor, rate: Factor) -> None:
        """Second pass, with one (keep, rate) per row, or one for all rows."""


class BackendInfo(NamedTuple):
    """One row of ``ingot info``."""

    name: str
    available: bool
    reason: str
    hint: str
    devices: str


FLAT = Flat()
REFERENCE = Reference()
TABLE: tuple[Backend, ...] = (NATIVE, FLAT, REFERENCE)


def named(name: str) -> Backend:
    """The backend a user asked for by name; raises if there is none or it cannot be used here."""
    known = {backend.name: backend for backend in TABLE}
    if name not in known:
        raise ValueError(f"backend={name!r} is not known; known are {', '.join(map(repr, known))}")
    reason = known[name].unavailable()
    if reason:
        raise ValueError(f"backend={name!r} is not available: {reason}. {known[name].hint}")
    return known[name]


def choose(bucket: Bucket, name: str | None) -> Backend:
    """The first backend that takes the bucket, or the named one."""
    if name is not None:
        backend = named(name)
        reason = backend.prepare(bucket)
        if reason:
            raise RuntimeError(f"backend={name!r} cannot run this step: {reason}")
        return backend
    if bucket.params[0].device.type == "cpu":
        warn_without_core(NATIVE.unavailable())
    for backend in TABLE:
        if backend.unavailable() is not None or not backend.suits(bucket):
            continue
        if backend.prepare(bucket) is None:
            return backend
    raise AssertionError("the reference backend takes everything")


@cache
def warn_without_core(reason: str | None) -> None:
    """Say once that steps on the CPU could be faster; who names a backend is not told."""
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
        rows.append(
            BackendInfo(backend.name, reason is None, reason or "", backend.hint, backend.devices)
        )
    return rows


def choose_for(device: torch.device | str) -> tuple[str, str]:
    """``(name, why)`` of the backend taken for ordinary tensors on a device; why, below a list of them."""
    skipped: list[str] = []
    for backend in TABLE:
        reason = backend.unavailable()
        if reason is None and backend.devices not in (ANYWHERE, torch.device(device).type):
            reason = f"for {backend.devices} tensors only"
        if reason is None:
            kind = torch.device(device).type
            why = [*skipped, f"the first of the list above that runs on {kind}"]
            if kind == "cpu" and backend is FLAT:
                why.append("large tensors go to reference")
            return backend.name, "; ".join(why)
        skipped.append(f"not {backend.name}: {reason}")
    raise AssertionError("the reference backend takes everything")


def on_cpu(value: float) -> Tensor:
    """A number of the native core as a 0-dim tensor."""
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the squares of all elements, as a 0-dim tensor on the device of the first."""
    value = NATIVE.squares(tensors) if NATIVE.unavailable() is None else None
    return REFERENCE.squares(tensors) if value is None else on_cpu(value)


def grad_squares(bucket: Bucket) -> Tensor:
    """The sum of the squares of a bucket's gradients; the native backend has them at hand already."""
    if bucket.backend is not NATIVE:
        return squares(bucket.grads)
    return on_cpu(NATIVE.grad_squares(bucket))


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """The largest magnitude, NaN if there is one, as a 0-dim tensor."""
    value = NATIVE.largest(tensors) if NATIVE.unavailable() is None else None
    return REFERENCE.largest(tensors) if value is None else on_cpu(value)


def scale_(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all tensors in place."""
    if NATIVE.unavailable() is not None or not NATIVE.scale_(tensors, factor):
        REFERENCE.scale_(tensors, factor)
