"""Adadelta: steps whose size follows from the sizes of the steps before (https://arxiv.org/abs/1212.5701)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.options import EPS, LR, WEIGHT_DECAY, Number, Rule, real
from ingot.declare.spec import Group, Spec, State, learning_rate
from ingot.declare.words import sqrt
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1: the decay goes through the gradient
    rate: float  # lr
    rho: float
    comp: float  # 1 - rho
    eps: float
    weight_decay: float


def scalars(group: Group, step: int) -> Scalars:
    """The same in every step."""
    return Scalars(
        keep=1.0,
        rate=learning_rate(group),
        rho=group["rho"],
        comp=1 - group["rho"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
    )


def advance(
    param: Any, grad: Any, square_avg: Any, acc_delta: Any, s: Any, *, weight_decay: bool
) -> tuple[Any, ...]:
    """Averages of the squares of the gradient and of the update."""
    if weight_decay:
        grad = grad + s.weight_decay * param
    square_avg = s.rho * square_avg + s.comp * grad * grad
    delta = sqrt(acc_delta + s.eps) / sqrt(square_avg + s.eps) * grad
    acc_delta = s.rho * acc_delta + s.comp * delta * delta
    return square_avg, acc_delta


def direction(
    param: Any, grad: Any, square_avg: Any, acc_delta: Any, s: Any, *, weight_decay: bool
) -> Any:
    """The gradient times the size of the updates before this one over that of the gradients up to it."""
    if weight_decay:
        grad = grad + s.weight_decay * param
    square_avg = s.rho * square_avg + s.comp * grad * grad
    return sqrt(acc_delta + s.eps) / sqrt(square_avg + s.eps) * grad


class NpuFusedAdadelta(FusedOptimizer):
    """Adadelta, as torch.optim.Adadelta computes it.

    ::

        grad       = grad + weight_decay * param
        square_avg = rho * square_avg + (1 - rho) * grad^2
        delta      = sqrt(acc_delta + eps) / sqrt(square_avg + eps) * grad
        acc_delta  = rho * acc_delta + (1 - rho) * delta^2
        param      = param - lr * delta

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: factor of the update, a float or a 0-dim tensor (default 1.0).
        rho: decay rate of the two averages, in [0, 1] (default 0.9).
        eps: added to the averages before their roots are taken (default 1e-6).
        weight_decay: L2 penalty (default 0).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedAdadelta
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedAdadelta([param], lr=10.0)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.9684, 0.9684, 0.9684])
    """

    spec = Spec(
        "adadelta",
        {"square_avg": State(signed=False), "acc_delta": State(signed=False)},
        scalars,
        advance,
        direction,
        looks_back=True,  # acc_delta is that of the steps before
    )
    rules = {
        "lr": LR,
        "rho": Rule("rho value", lambda x: 0 <= real(x) <= 1, "in the interval [0, 1]"),
        "eps": EPS,
        "weight_decay": WEIGHT_DECAY,
    }

    def __init__(
        self,
        params: Params,
        lr: Number = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay), **common)
