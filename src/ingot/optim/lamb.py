"""LAMB: Adam with a trust ratio per tensor (https://arxiv.org/abs/1904.00962)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.options import BETAS, EPS, FLAG, LR, WEIGHT_DECAY, Number, Rule, real
from ingot.declare.spec import Clip, Group, Spec, learning_rate, max_grad_norm_clip
from ingot.declare.words import sqrt, where
from ingot.optim.moments import MOMENTS, advance
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    rate: float  # lr
    beta1: float
    comp1: float
    beta2: float
    comp2: float
    rbias1: float  # 1 / (1 - beta1^t), or 1 without bias correction
    rbias2: float  # 1 / sqrt(1 - beta2^t), or 1
    eps: float
    weight_decay: float
    max_weight_norm: float


def scalars(group: Group, step: int) -> Scalars:
    """The scalars of step ``step``, counted from 1."""
    beta1, beta2 = group["betas"]
    correct = group["bias_correction"]
    max_weight_norm = group["max_weight_norm"]
    return Scalars(
        rate=learning_rate(group),
        beta1=beta1,
        comp1=1 - beta1,
        beta2=beta2,
        comp2=1 - beta2,
        rbias1=1 / (1 - beta1**step) if correct else 1.0,
        rbias2=1 / math.sqrt(1 - beta2**step) if correct else 1.0,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        max_weight_norm=math.inf if max_weight_norm is None else max_weight_norm,
    )


def direction(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, s: Any, *, weight_decay: bool
) -> Any:
    """The Adam step with the decay inside, before the trust ratio."""
    denom = sqrt(exp_avg_sq) * s.rbias2 + s.eps
    update = exp_avg * s.rbias1 / denom
    return update + s.weight_decay * param if weight_decay else update


def finish(
    row: Any, total: Any, row_scores: Any, total_score: Any, s: Any, *, adam: bool
) -> tuple[Any, Any]:
    """The trust ratio: norm of the weight over norm of the update; 1 where either is zero."""
    weight_norm = sqrt(total.pp)
    weight_norm = where(weight_norm > s.max_weight_norm, s.max_weight_norm, weight_norm)
    update_norm = sqrt(total.uu)
    ratio = where(update_norm == 0.0, 1.0, weight_norm / update_norm)
    ratio = where(weight_norm == 0.0, 1.0, ratio)
    return 1.0, (s.rate if adam else s.rate * ratio)


def watched(
    row: Any, total: Any, row_scores: Any, total_score: Any, s: Any, *, adam: bool
) -> dict[str, Any]:
    """The trust ratio: the rate that ``finish`` makes of 1."""
    _, rate = finish(row, total, row_scores, total_score, s._replace(rate=1.0), adam=adam)
    return {"trust_ratio": rate}


def clips(group: Group) -> tuple[Clip, ...]:
    """``use_global_grad_norm`` divides by the norm itself when it is above 1; ``max_grad_norm`` comes after."""
    option = "use_global_grad_norm"
    whole = (Clip(1.0, slack=0.0, option=option),) if group[option] else ()
    return whole + max_grad_norm_clip(group)


class NpuFusedLamb(FusedOptimizer):
    """LAMB with a clamped weight norm; by default without bias correction, as torch_npu computes it.

    ::

        exp_avg    = beta1 * exp_avg + (1 - beta1) * grad
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
        update     = exp_avg / (sqrt(exp_avg_sq) + eps) + weight_decay * param
                     bias_correction: with exp_avg / (1 - beta1^t) and exp_avg_sq / (1 - beta2^t) above
        ratio      = min(|param|, max_weight_norm) / |update|          (1 where either is 0, or adam)
        param      = param - lr * ratio * update

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a tensor of one element (default 1e-3).
        betas: decay rates of the two averages, each in [0, 1) (default (0.9, 0.999)).
        eps: added to the denominator (default 1e-6).
        weight_decay: weight decay, inside the update (default 0).
        adam: use a trust ratio of 1 (default False).
        use_global_grad_norm: divide all gradients by their common norm if it is above 1 (default False).
        bias_correction: correct the averages for their start at zero, as the paper does (default False).
        max_weight_norm: upper limit of the weight norm, None for no limit (default 10).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedLamb
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedLamb([param], lr=0.1)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.9000, 0.9000, 0.9000])
    """

    spec = Spec(
        "lamb",
        MOMENTS,
        scalars,
        advance,
        direction,
        finish,
        watched=watched,
        sums=("pp", "uu"),
        clips=clips,
    )
    unsaved = frozenset({"adam", "use_global_grad_norm"})  # torch_npu does not save them
    rules = {
        "lr": LR,
        "betas": BETAS,
        "eps": EPS,
        "weight_decay": WEIGHT_DECAY,
        "adam": FLAG,
        "use_global_grad_norm": FLAG,
        "bias_correction": FLAG,
        "max_weight_norm": Rule(
            "max_weight_norm value", lambda x: x is None or real(x) > 0, "None or a number > 0"
        ),
    }

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
        *,
        bias_correction: bool = False,
        max_weight_norm: float | None = 10.0,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            adam=adam,
            use_global_grad_norm=use_global_grad_norm,
            bias_correction=bias_correction,
            max_weight_norm=max_weight_norm,
        )
        super().__init__(params, defaults, **common)
