"""8-bit states, written from "The format" in docs/precision.md: what codes stand for, and which ones a number may have.

A step is judged from the codes before it, decoded here. It may leave those codes that the new number of the formula,
give or take its error, is rounded to. Update formulas read the new number itself, except those of LAMB and AdamP.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fuzz.bounds import SAFETY, SINGLE, SUBNORMAL, Bounded
from fuzz.tensors import array, loaded
from fuzz.world import Difference

FEWEST = 4096  # elements; the states of smaller tensors stay in float32
BLOCK, SCALE = 128, "_scale"
UNSIGNED = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta")
TYPES = {False: "torch.uint8", True: "torch.int8"}  # by whether the state is signed
PEAKS = {False: 251.0, True: 127.0}
ZERO = 1e-30  # blocks below this have a scale of 0
TWO_PASS = ("NpuFusedLamb", "NpuFusedAdamP")  # their updates read states as they are stored
ROUNDINGS = 8 * SINGLE  # of a few operations in float32, relative


def signed(name: str) -> bool:
    """Whether a state may be negative."""
    return name not in UNSIGNED


def states_of(slots: dict[str, Any]) -> list[str]:
    """The names of the states without step counts, master copies and the scales of codes."""
    return [n for n in slots if n not in ("step", "master_param") and not n.endswith(SCALE)]


def is_coded(slots: dict[str, Any], name: str) -> bool:
    return name + SCALE in slots


def block_of(count: int) -> Any:
    """The number of the block of every element, in row-major order."""
    return np.arange(count) // BLOCK


def spread(scale: Tensor, count: int) -> Any:
    """The scale of every element."""
    return array(scale)[block_of(count)]


def decoded(slots: dict[str, Any], name: str) -> Bounded:
    """The numbers that codes stand for; to read them takes a few operations in float32."""
    codes = slots[name].numpy()
    scale = spread(slots[name + SCALE], codes.size).reshape(codes.shape)
    if signed(name):
        value = codes * scale
    else:
        exponent, fraction = codes >> 5, codes & 31
        value = ((1 + fraction / np.longdouble(32)) * 2.0**exponent - 1) * scale
        value = value * value
    return Bounded(value, 4 * SINGLE * np.abs(value) + SUBNORMAL[SINGLE], SINGLE)


def read(
    kind: str, slots: dict[str, Any], new: dict[str, Bounded], unit: float
) -> dict[str, Bounded]:
    """The new states as the update reads them: as they are stored, or before they were rounded to codes."""
    result = {}
    for name in states_of(slots):
        if not is_coded(slots, name):
            result[name] = loaded(slots[name], unit)
        elif name in new and kind not in TWO_PASS:
            result[name] = new[name]
        else:
            result[name] = decoded(slots, name)
    return result


def position(y: Any) -> Any:
    """Where a number from 1 to 256 lies between the codes of unsigned states: exponent and fraction, in steps."""
    mantissa, exponent = np.frexp(y)
    return 32 * (exponent - 1 + (2 * mantissa - 1))


def rounded(least: Any, most: Any, stochastic: bool) -> tuple[Any, Any]:
    """The whole numbers that anything between the two may be rounded to."""
    if stochastic:
        return np.floor(least), np.ceil(most)
    return np.ceil(least - 0.5), np.floor(most + 0.5)


def interval(name: str, expected: Bounded, count: int) -> tuple[Any, Any]:
    """What is coded, the number or its root, lies between these."""
    value = expected.value.reshape(count)
    error = SAFETY * np.broadcast_to(expected.error, expected.value.shape).reshape(count)
    error = np.where(np.isnan(error), np.inf, error)
    if signed(name):
        return value - error, value + error
    return np.sqrt(np.maximum(value - error, 0)), np.sqrt(np.maximum(value + error, 0))


def extremes(least: Any, most: Any) -> tuple[Any, Any]:
    """The bounds of the largest magnitude of every block; NaN if it has a number that is not finite."""
    blocks = block_of(len(least))
    low, high = np.maximum(np.maximum(least, -most), 0), np.maximum(np.abs(least), np.abs(most))
    result = []
    for bound in (low, high):
        largest = np.zeros(blocks[-1] + 1, np.longdouble)
        np.maximum.at(largest, blocks, bound)
        result.append(largest)
    return result[0], result[1]


def allowed_codes(
    name: str, least: Any, most: Any, scale: Any, stochastic: bool
) -> tuple[Any, Any]:
    """The smallest and the largest code of every element; ``scale`` is that of its block as it was stored."""
    zero = ~(scale > 0)  # a poisoned block counts as zeros
    divisor = np.where(zero, 1, scale)
    least, most = np.where(zero, 0, least) / divisor, np.where(zero, 0, most) / divisor
    least, most = least - ROUNDINGS * np.abs(least), most + ROUNDINGS * np.abs(most)
    if signed(name):
        lowest, highest = rounded(least, most, stochastic)
        return np.clip(lowest, -127, 127), np.clip(highest, -127, 127)
    least, most = np.clip(least, 0, 255), np.clip(most, 0, 255)
    small = np.where(zero, 0, ROUNDINGS)  # the sum of a small number and 1 is rounded, too
    lowest, highest = rounded(position(least + 1 - small), position(most + 1 + small), stochastic)
    return np.clip(lowest, 1, 255), np.clip(highest, 1, 255)


def check(what: str, source: str, slots: dict[str, Any], expected: Bounded, lax: bool) -> None:
    """Raise unless codes and scales are those of the expected numbers; ``lax`` is for stochastic rounding."""
    name = what.rsplit(" ", 1)[-1]
    codes, scales = slots[name], slots[name + SCALE]
    count, wanted = codes.numel(), (-(-codes.numel() // BLOCK),)
    if str(codes.dtype) != TYPES[signed(name)] or tuple(scales.shape) != wanted:
        raise Difference(f"{what}: {codes.dtype} with scales of shape {tuple(scales.shape)}")
    with np.errstate(invalid="ignore"):
        least, most = interval(name, expected, count)
        low, high = extremes(least, most)
        poisoned = np.zeros(len(low), bool)
        np.logical_or.at(poisoned, block_of(count), ~np.isfinite(expected.value.reshape(count)))
        got = array(scales)
        floor = low * (1 - ROUNDINGS) / PEAKS[signed(name)]
        ceiling = high * (1 + ROUNDINGS) / PEAKS[signed(name)]
        fine = (got >= floor) & (got <= ceiling) & ((high >= ZERO) | (got == 0))
        fine |= (got == 0) & (low < ZERO)
        fine = np.where(poisoned, np.isnan(got), fine)
    if not fine.all():
        at = int(np.flatnonzero(~fine)[0])
        between = f"{float(floor[at])!r} <= scale <= {float(ceiling[at])!r}"
        raise Difference(
            f"{what}: the scale of block {at} is {float(got[at])!r}, allowed is {between}",
            f"scale = {source[:-2]}_scale'][{at}].item(); assert {between}, scale",
        )
    lowest, highest = allowed_codes(name, least, most, spread(scales, count), lax)
    found = codes.numpy().reshape(count).astype(np.longdouble)
    wrong = ~((found >= lowest) & (found <= highest))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        between = f"{int(lowest[at])} <= code <= {int(highest[at])}"
        raise Difference(
            f"{what}: the code of element {at} is {int(found[at])}, allowed is {between}",
            f"code = {source}.flatten()[{at}].item(); assert {between}, code",
        )
