"""Step counts as they stand in states: whole numbers, written as whoever put them there likes."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import Tensor

MOST_STEPS = 2**53  # float64, in which large counts are saved, has every whole number up to here


def step_count(where: object, value: Any) -> int:
    """A step count from a whole number, or from a tensor of one; raises ValueError for anything else."""
    number = value
    if isinstance(value, Tensor):
        usable = value.numel() == 1 and not (value.is_meta or value.is_complex())
        number = value.item() if usable else None
    if isinstance(number, float) and math.isfinite(number) and number.is_integer():
        number = int(number)
    try:
        step = -1 if isinstance(number, (bool, float)) else operator.index(number)
    except TypeError:
        step = -1
    if not 0 <= step <= MOST_STEPS:
        raise ValueError(
            f"{where}: step must be a whole number from 0 to 2**53, the state has {shown(value)}"
        )
    return step


def shown(value: Any) -> str:
    """A value for a message; Python refuses to write out integers of many thousand digits."""
    if isinstance(value, int) and abs(value) > MOST_STEPS:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
