"""AdamW: Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.options import BETAS, EPS, FLAG, LR, WEIGHT_DECAY, Number
from ingot.declare.spec import Group, Spec, learning_rate
from ingot.declare.words import sqrt
from ingot.optim.moments import MOMENTS_AMSGRAD, advance
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1 - lr * weight_decay
    rate: float  # lr / (1 - beta1^t)
    beta1: float
    comp1: float
    beta2: float
    comp2: float
    rbias2: float  # 1 / sqrt(1 - beta2^t)
    eps: float


def scalars(group: Group, step: int) -> Scalars:
    """The scalars of step ``step``, counted from 1."""
    lr, (beta1, beta2) = learning_rate(group), group["betas"]
    keep = 1 - lr * group["weight_decay"]
    rate = lr / (1 - beta1**step)
    rbias2 = 1 / math.sqrt(1 - beta2**step)
    # In the order of the class, without names: they would take 0.5 us of a step.
    return Scalars(keep, rate, beta1, 1 - beta1, beta2, 1 - beta2, rbias2, group["eps"])


def direction(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    s: Any,
    *,
    amsgrad: bool,
) -> Any:
    """The bias-corrected step, without its rate."""
    denom = sqrt(max_exp_avg_sq if amsgrad else exp_avg_sq) * s.rbias2 + s.eps
    return exp_avg / denom


class NpuFusedAdamW(FusedOptimizer):
    """AdamW, as torch.optim.AdamW computes it.

    ::

        exp_avg    = beta1 * exp_avg + (1 - beta1) * grad
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
        denom      = sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps        (amsgrad: of its maximum so far)
        param      = (1 - lr * weight_decay) * param - lr / (1 - beta1^t) * exp_avg / denom

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a tensor of one element (default 1e-3).
        betas: decay rates of the two averages, each in [0, 1) (default (0.9, 0.999)).
        eps: added to the denominator (default 1e-8).
        weight_decay: decoupled weight decay (default 1e-2).
        amsgrad: use the maximum of ``exp_avg_sq`` (default False).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedAdamW
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedAdamW([param], lr=0.1)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.8990, 0.8990, 0.8990])
    """

    decoupled_weight_decay = True
    spec = Spec("adamw", MOMENTS_AMSGRAD, scalars, advance, direction)
    rules = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY, "amsgrad": FLAG}

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        # As in torch.optim: it tells a checkpoint of AdamW from one of Adam.
        super().__init__(params, defaults, **common)
