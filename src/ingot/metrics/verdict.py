"""Which parameters stand out in a run: those that die and those that explode, by a rule that can be said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ingot.metrics.record import Metrics

FAR = 1000.0  # times less or more than the median parameter
GROWN = 10.0  # times its own level in the first quarter of the run
LARGE = 0.03  # the weight is as good as written anew within some thirty steps
RULE = (
    "Medians of the last quarter of the tracked steps. Dying: gradient norm or update ratio is 0, or 1000 times below "
    "that of the median parameter. Exploding: either is not finite, or 1000 times above that of the median parameter "
    "and 10 times above the parameter's own median of the first quarter, or the update ratio is above 0.03."
)


class Verdict(NamedTuple):
    """Why a parameter stands out."""

    kind: str  # "dying" or "exploding"
    why: str


def stand_out(run: Sequence[Metrics]) -> dict[str, Verdict]:
    """The parameters of a run that stand out, in the order of the run; see ``RULE``."""
    quarter = max(len(run) // 4, 1)
    early, late = run[:quarter], run[-quarter:]
    names = list(dict.fromkeys(name for metrics in late for name in metrics))
    found: dict[str, Verdict] = {}
    for quantity, title in (("grad_norm", "gradient norm"), ("update_ratio", "update ratio")):
        levels = {name: level(late, name, quantity) for name in names}
        usual = usual_level(levels)
        for name, value in levels.items():
            verdict = judge(title, value, usual, level(early, name, quantity))
            if verdict is not None:
                found.setdefault(name, verdict)
    return {name: found[name] for name in names if name in found}


def level(part: Sequence[Metrics], name: str, quantity: str) -> float:
    """The median of a quantity of one parameter; NaN if one of its values is, and 0 if it has none."""
    values = [metrics[name][quantity] for metrics in part if name in metrics]
    return math.nan if any(map(math.isnan, values)) else median(values or [0.0])


def usual_level(levels: Mapping[str, float]) -> float:
    """The level of the median parameter, among those that move at all."""
    moving = [value for value in levels.values() if math.isfinite(value) and value > 0]
    return median(moving) if moving else 0.0


def judge(title: str, value: float, usual: float, before: float) -> Verdict | None:
    """What is wrong with a level, if anything is; ``before`` is what it was when the run began.

    Where the gradients of most layers vanish, the median is tiny and the healthy layers lie far above it. They
    explode only if they have grown, too.
    """
    if not math.isfinite(value):
        return Verdict("exploding", f"{title} {value}")
    if value == 0:
        return Verdict("dying", f"{title} 0")
    if value * FAR < usual:
        return Verdict("dying", f"{title} {value:.1e}, {usual / value:.0f} times below the median")
    if value > usual * FAR and not value <= before * GROWN:
        return Verdict("exploding", f"{title} {value:.1e}, {value / usual:.0f} times the median")
    if title == "update ratio" and value > LARGE:
        return Verdict("exploding", f"{title} {value:.2g}: above {LARGE:g} of the weight per step")
    return None
