"""The math of RMSprop and RMSpropTF, which differ in their scalars and in how the mean square starts.

Differs from torch_npu: a variance that rounding has made negative counts as zero. torch takes its root, NaN.
"""

from typing import Any, NamedTuple

from ingot.declare.words import maximum, sqrt


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1, unless the decay is decoupled
    rate: float  # lr, or 1 where it is in the buffer
    alpha: float
    comp: float  # 1 - alpha
    eps: float  # added to the root
    eps_inside: float  # added before the root is taken
    weight_decay: float
    momentum: float
    blend: float  # what an update enters the buffer with: 1, or lr


def advance(
    param: Any,
    grad: Any,
    square_avg: Any,
    momentum_buffer: Any,
    grad_avg: Any,
    s: Any,
    *,
    centered: bool,
    decoupled_decay: bool,
    momentum: bool,
    weight_decay: bool,
) -> tuple[Any, ...]:
    """Averages of the decayed gradient and of its square; the running sum of updates."""
    if weight_decay and not decoupled_decay:
        grad = grad + s.weight_decay * param
    square_avg = s.alpha * square_avg + s.comp * grad * grad
    if centered:
        grad_avg = s.alpha * grad_avg + s.comp * grad
    if momentum:
        variance = square_avg
        if centered:
            variance = maximum(square_avg - grad_avg * grad_avg, 0.0)
        update = grad / (sqrt(variance + s.eps_inside) + s.eps)
        momentum_buffer = s.momentum * momentum_buffer + s.blend * update
    return square_avg, momentum_buffer, grad_avg


def direction(
    param: Any,
    grad: Any,
    square_avg: Any,
    momentum_buffer: Any,
    grad_avg: Any,
    s: Any,
    *,
    centered: bool,
    decoupled_decay: bool,
    momentum: bool,
    weight_decay: bool,
) -> Any:
    """The running sum of updates, or this one alone."""
    if momentum:
        return momentum_buffer
    if weight_decay and not decoupled_decay:
        grad = grad + s.weight_decay * param
    variance = square_avg
    if centered:
        variance = maximum(square_avg - grad_avg * grad_avg, 0.0)
    return grad / (sqrt(variance + s.eps_inside) + s.eps)
