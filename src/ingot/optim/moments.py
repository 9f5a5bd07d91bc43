"""The running moments shared by the whole Adam family."""

from typing import Any

from ingot.declare.spec import State
from ingot.declare.words import maximum

MOMENTS = {"exp_avg": State(), "exp_avg_sq": State(signed=False)}
MOMENTS_AMSGRAD = {**MOMENTS, "max_exp_avg_sq": State("amsgrad", signed=False)}


def advance(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    s: Any,
    *,
    amsgrad: bool,
) -> tuple[Any, ...]:
    """Averages of the gradient and of its square; comp is 1 - beta, taken in double precision."""
    exp_avg = exp_avg * s.beta1 + grad * s.comp1
    exp_avg_sq = exp_avg_sq * s.beta2 + grad * grad * s.comp2
    if amsgrad:
        max_exp_avg_sq = maximum(max_exp_avg_sq, exp_avg_sq)
    return exp_avg, exp_avg_sq, max_exp_avg_sq
