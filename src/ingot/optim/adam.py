"""Adam: running averages of the gradient and of its square (https://arxiv.org/abs/1412.6980)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.options import BETAS, EPS, FLAG, LR, WEIGHT_DECAY, Number
from ingot.declare.spec import Group, Spec, learning_rate
from ingot.declare.words import maximum
from ingot.optim.adamw import direction
from ingot.optim.moments import MOMENTS_AMSGRAD
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1: the decay goes through the gradient
    rate: float  # lr / (1 - beta1^t)
    beta1: float
    comp1: float
    beta2: float
    comp2: float
    rbias2: float  # 1 / sqrt(1 - beta2^t)
    eps: float
    weight_decay: float


def scalars(group: Group, step: int) -> Scalars:
    """The scalars of step ``step``, counted from 1."""
    beta1, beta2 = group["betas"]
    keep, rate = 1.0, learning_rate(group) / (1 - beta1**step)
    rbias2 = 1 / math.sqrt(1 - beta2**step)
    eps, decay = group["eps"], group["weight_decay"]
    # In the order of the class, without names: they would take 0.5 us of a step.
    return Scalars(keep, rate, beta1, 1 - beta1, beta2, 1 - beta2, rbias2, eps, decay)


def advance(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    s: Any,
    *,
    amsgrad: bool,
    weight_decay: bool,
) -> tuple[Any, ...]:
    """Averages of the decayed gradient and of its square; comp is 1 - beta, taken in double precision."""
    if weight_decay:
        grad = grad + s.weight_decay * param
    exp_avg = exp_avg * s.beta1 + grad * s.comp1
    exp_avg_sq = exp_avg_sq * s.beta2 + grad * grad * s.comp2
    if amsgrad:
        max_exp_avg_sq = maximum(max_exp_avg_sq, exp_avg_sq)
    return exp_avg, exp_avg_sq, max_exp_avg_sq


class NpuFusedAdam(FusedOptimizer):
    """Adam, as torch.optim.Adam computes it.

    ::

        grad       = grad + weight_decay * param
        exp_avg    = beta1 * exp_avg + (1 - beta1) * grad
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
        denom      = sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps        (amsgrad: of its maximum so far)
        param      = param - lr / (1 - beta1^t) * exp_avg / denom

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a 0-dim tensor (default 1e-3).
        betas: decay rates of the two averages, each in [0, 1) (default (0.9, 0.999)).
        eps: added to the denominator (default 1e-8).
        weight_decay: L2 penalty (default 0).
        amsgrad: use the maximum of ``exp_avg_sq`` (default False).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedAdam
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedAdam([param], lr=0.1)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.9000, 0.9000, 0.9000])
    """

    decoupled_weight_decay = False
    spec = Spec("adam", MOMENTS_AMSGRAD, scalars, advance, direction)
    rules = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY, "amsgrad": FLAG}

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        super().__init__(params, defaults, **common)
