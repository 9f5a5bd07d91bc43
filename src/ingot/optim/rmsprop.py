"""RMSprop: gradients over the root of their running mean square (G. Hinton, Neural Networks for ML, lecture 6e)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.declare.options import ALPHA, EPS, FLAG, LR, MOMENTUM, WEIGHT_DECAY, Number
from ingot.declare.spec import Group, Spec, State, learning_rate
from ingot.optim.mean_square import Scalars, advance, direction
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


def scalars(group: Group, step: int) -> Scalars:
    """The same in every step."""
    return Scalars(
        keep=1.0,
        rate=learning_rate(group),
        alpha=group["alpha"],
        comp=1 - group["alpha"],
        eps=group["eps"],
        eps_inside=0.0,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        blend=1.0,
    )


class NpuFusedRMSprop(FusedOptimizer):
    """RMSprop, as torch.optim.RMSprop computes it.

    ::

        grad       = grad + weight_decay * param
        square_avg = alpha * square_avg + (1 - alpha) * grad^2
        grad_avg   = alpha * grad_avg + (1 - alpha) * grad            (centered)
        update     = grad / (sqrt(square_avg) + eps)                  (centered: of square_avg - grad_avg^2)
        momentum_buffer = momentum * momentum_buffer + update         (momentum > 0: used for update below)
        param      = param - lr * update

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a 0-dim tensor (default 1e-2).
        alpha: decay rate of the averages, at least 0 (default 0.99).
        eps: added to the denominator (default 1e-8).
        weight_decay: L2 penalty (default 0).
        momentum: decay rate of the buffer (default 0: no buffer).
        centered: divide by the standard deviation of the gradient (default False).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedRMSprop
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedRMSprop([param], lr=0.01)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.9000, 0.9000, 0.9000])
    """

    spec = Spec(
        "rmsprop",
        {
            "square_avg": State(signed=False),
            "momentum_buffer": State("momentum"),
            "grad_avg": State("centered"),
        },
        scalars,
        advance,
        direction,
    )
    rules = {
        "lr": LR,
        "alpha": ALPHA,
        "eps": EPS,
        "weight_decay": WEIGHT_DECAY,
        "momentum": MOMENTUM,
        "centered": FLAG,
    }

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
        )
        super().__init__(params, defaults, **common)
