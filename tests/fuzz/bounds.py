"""Numbers with a bound of their rounding error: what a float32 or float64 computation may differ by.

The error model. A value is kept in extended precision (numpy's longdouble; at least float64) beside a bound of the
absolute error of the same computation made in a type with unit roundoff ``unit`` (2^-24 for float32, 2^-53 for
float64). Every operation passes the errors of its operands on and adds one rounding of its result (``unit * |result|``,
and the smallest subnormal number for results that underflow). Where values cancel, the bound stays as large as the
operands were, and where they do not, it stays at a few roundings.

An implementation may order the operations differently, multiply by a reciprocal, or contract a product and a sum:
``SAFETY`` times the bound is allowed for that, and the rounding of what is stored comes on top.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SAFETY = 1.5
SUBNORMAL = {2.0**-24: 2.0**-149, 2.0**-53: 2.0**-1074}
SINGLE, DOUBLE = 2.0**-24, 2.0**-53


class Bounded:
    """An array (or a number) and the bound of its error, element by element."""

    __array_priority__ = 1000  # numpy leaves ``array * bounded`` to this class
    __slots__ = ("error", "unit", "value")

    def __init__(self, value: Any, error: Any = 0.0, unit: float = DOUBLE) -> None:
        self.value = np.asarray(value, dtype=np.longdouble)
        self.error = np.asarray(error, dtype=np.longdouble)
        self.unit = unit

    def to(self, unit: float) -> Bounded:
        """The number rounded to another type; a wider one changes nothing."""
        if unit <= self.unit:
            return Bounded(self.value, self.error, unit)
        return Bounded(self.value, self.error + unit * np.abs(self.value) + SUBNORMAL[unit], unit)

    def kept(self, roundoff: float, subnormal: float) -> Bounded:
        """The number after it was stored in a narrower type and read back."""
        return Bounded(
            self.value, self.error + roundoff * np.abs(self.value) + subnormal, self.unit
        )

    def _made(self, value: Any, error: Any) -> Bounded:
        rounding = self.unit * np.abs(value) + SUBNORMAL[self.unit]
        return Bounded(value, error + rounding, self.unit)

    def __add__(self, other: Any) -> Bounded:
        other = lift(other, self.unit)
        return self._made(self.value + other.value, self.error + other.error)

    __radd__ = __add__

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.error, self.unit)

    def __sub__(self, other: Any) -> Bounded:
        return self + -lift(other, self.unit)

    def __rsub__(self, other: Any) -> Bounded:
        return lift(other, self.unit) - self

    def __mul__(self, other: Any) -> Bounded:
        other = lift(other, self.unit)
        error = np.abs(self.value) * other.error + (np.abs(other.value) + other.error) * self.error
        return self._made(self.value * other.value, error)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Bounded:
        other = lift(other, self.unit)
        value = self.value / other.value
        least = np.abs(other.value) - other.error
        error = (self.error + np.abs(value) * other.error) / np.where(least > 0, least, 1)
        return self._made(value, np.where(least > 0, error, np.inf))

    def __rtruediv__(self, other: Any) -> Bounded:
        return lift(other, self.unit) / self

    def reshape(self, *shape: int) -> Bounded:
        error = np.broadcast_to(self.error, self.value.shape)
        return Bounded(self.value.reshape(shape), error.reshape(shape), self.unit)


def lift(number: Any, unit: float) -> Bounded:
    """A plain number is exact."""
    return number if isinstance(number, Bounded) else Bounded(number, 0.0, unit)


def sqrt(x: Bounded) -> Bounded:
    """The square root; correctly rounded to one unit in the last place, which torch's own kernels are not always."""
    root = np.sqrt(np.maximum(x.value, 0))
    spread = np.sqrt(np.maximum(x.value, 0) + x.error) - np.sqrt(np.maximum(x.value - x.error, 0))
    return x._made(root, spread + x.unit * root)


def maximum(a: Bounded, b: Bounded) -> Bounded:
    return Bounded(np.maximum(a.value, b.value), np.maximum(a.error, b.error), a.unit)


def minimum(a: Bounded, b: Any) -> Bounded:
    b = lift(b, a.unit)
    return Bounded(np.minimum(a.value, b.value), np.maximum(a.error, b.error), a.unit)


def clipping(limit: float, norm: Bounded, slack: float) -> Bounded:
    """The clip coefficient; an infinite norm makes it exactly 0."""
    return Bounded(0.0) if np.isinf(norm.value) else minimum(limit / (norm + slack), 1.0)


def absolute(a: Bounded) -> Bounded:
    return Bounded(np.abs(a.value), a.error, a.unit)


def total(x: Bounded) -> Bounded:
    """The sum over the last dimension (which is kept).

    Its roundings are taken as a random walk of as many steps as there are elements, added up in the type of the
    math. That is what the slowest way to add does; double precision, or many partial sums, are better. Equal numbers
    (an expanded gradient has them) are no random walk: each is rounded the same way.
    """
    value, error = x.value, np.broadcast_to(x.error, x.value.shape)
    count = value.shape[-1]
    roundings = 16 + math.sqrt(count)
    if count > 1000:
        roundings += count / math.sqrt(len(np.unique(value)))
    rounding = roundings * x.unit * np.abs(value).sum(-1, keepdims=True)
    return Bounded(value.sum(-1, keepdims=True), error.sum(-1, keepdims=True) + rounding, x.unit)
