"""AdamP: Adam without the part of the step that only grows the weight (https://arxiv.org/abs/2006.08217)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.options import BETAS, EPS, FLAG, LR, NONNEGATIVE, WEIGHT_DECAY, Number
from ingot.declare.spec import Group, Spec, learning_rate
from ingot.declare.words import absolute, sqrt, where
from ingot.optim.moments import MOMENTS_AMSGRAD, advance
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1 - lr * weight_decay
    keep_projected: float  # 1 - lr * weight_decay * wd_ratio
    rate: float  # lr / (1 - beta1^t)
    beta1: float
    comp1: float
    beta2: float
    comp2: float
    rbias2: float  # 1 / sqrt(1 - beta2^t)
    eps: float
    delta: float


def scalars(group: Group, step: int) -> Scalars:
    """The scalars of step ``step``, counted from 1."""
    lr, (beta1, beta2) = learning_rate(group), group["betas"]
    decay = lr * group["weight_decay"]
    return Scalars(
        keep=1 - decay,
        keep_projected=1 - decay * group["wd_ratio"],
        rate=lr / (1 - beta1**step),
        beta1=beta1,
        comp1=1 - beta1,
        beta2=beta2,
        comp2=1 - beta2,
        rbias2=1 / math.sqrt(1 - beta2**step),
        eps=group["eps"],
        delta=group["delta"],
    )


def direction(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    s: Any,
    *,
    amsgrad: bool,
    nesterov: bool,
) -> Any:
    """The Adam step, before the projection."""
    denom = sqrt(max_exp_avg_sq if amsgrad else exp_avg_sq) * s.rbias2 + s.eps
    momentum = s.beta1 * exp_avg + s.comp1 * grad if nesterov else exp_avg
    return momentum / denom


def score(sums: Any, s: Any) -> Any:
    """0 where the gradient is nearly orthogonal to the weight, 1 elsewhere (and where it is NaN).

    ``cosine < delta / root_n``, multiplied out. Differs from the adamp package: eps is added to the norms, as
    torch_npu does; there it is their lower limit.
    """
    norms = (sqrt(sums.gg) + s.eps) * (sqrt(sums.pp) + s.eps)
    return where(absolute(sums.pg) * sums.root_n < s.delta * norms, 0.0, 1.0)


def finish(row: Any, total: Any, row_scores: Any, total_score: Any, s: Any) -> tuple[Any, Any]:
    """Take the radial part out of the update: per row if all rows are near, else per tensor, else not.

    ``update - param * <param, update> / norm^2`` folded into the factor of ``param``.
    """
    by_row = row_scores == 0.0
    norm = sqrt(where(by_row, row.pp, total.pp)) + s.eps
    radial = where(by_row, row.pu, total.pu) / (norm * norm)
    projected = s.keep_projected + s.rate * radial
    return where(row_scores * total_score == 0.0, projected, s.keep), s.rate


def watched(row: Any, total: Any, row_scores: Any, total_score: Any, s: Any) -> dict[str, Any]:
    """Which rows ``finish`` projects."""
    return {"projected_rows": where(row_scores * total_score == 0.0, 1.0, 0.0)}


class NpuFusedAdamP(FusedOptimizer):
    """AdamP: AdamW that projects the update off the weight where the gradient is orthogonal to it.

    ::

        exp_avg    = beta1 * exp_avg + (1 - beta1) * grad
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
        update     = exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps)
                     nesterov: with beta1 * exp_avg + (1 - beta1) * grad above
        for tensors of two or more dimensions, per channel (index of dim 0), else for the whole tensor:
            if the largest |cos(grad, param)| < delta / sqrt(elements per row):
                update = update - (param . update) / (|param| + eps)^2 * param,  ratio = wd_ratio
        param = (1 - lr * weight_decay * ratio) * param - lr / (1 - beta1^t) * update

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a tensor of one element (default 1e-3).
        betas: decay rates of the two averages, each in [0, 1) (default (0.9, 0.999)).
        eps: added to the denominator and to the norms (default 1e-8).
        weight_decay: decoupled weight decay (default 0).
        delta: threshold of the cosine (default 0.1).
        wd_ratio: factor of the weight decay where the update was projected (default 0.1).
        nesterov: Nesterov momentum (default False).
        amsgrad: use the maximum of ``exp_avg_sq`` (default False).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedAdamP
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedAdamP([param], lr=0.1)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.9000, 0.9000, 0.9000])
    """

    spec = Spec(
        "adamp",
        MOMENTS_AMSGRAD,
        scalars,
        advance,
        direction,
        finish,
        score,
        watched,
        sums=("pp", "gg", "pg", "pu"),
        rows=True,
    )
    rules = {
        "lr": LR,
        "betas": BETAS,
        "eps": EPS,
        "weight_decay": WEIGHT_DECAY,
        "delta": NONNEGATIVE,
        "wd_ratio": NONNEGATIVE,
        "nesterov": FLAG,
        "amsgrad": FLAG,
    }

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
        *,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            delta=delta,
            wd_ratio=wd_ratio,
            nesterov=nesterov,
            amsgrad=amsgrad,
        )
        super().__init__(params, defaults, **common)
