"""RMSprop as TensorFlow computes it: eps inside the root, a mean square that starts at one, lr inside the momentum."""

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
    # Differs from torch_npu: with lr=0 nothing decays. torch.distributed.checkpoint makes states by such a step.
    lr, decay = learning_rate(group), group["weight_decay"]
    in_buffer = group["momentum"] and group["lr_in_momentum"]
    return Scalars(
        keep=1 - decay * (lr != 0) if group["decoupled_decay"] else 1.0,
        rate=1.0 if in_buffer else lr,
        alpha=group["alpha"],
        comp=1 - group["alpha"],
        eps=0.0,
        eps_inside=group["eps"],
        weight_decay=decay,
        momentum=group["momentum"],
        blend=lr if in_buffer else 1.0,
    )


class NpuFusedRMSpropTF(FusedOptimizer):
    """RMSprop as TensorFlow computes it.

    ::

        grad       = grad + weight_decay * param                      (decoupled_decay: see the last line)
        square_avg = alpha * square_avg + (1 - alpha) * grad^2        (it starts at 1)
        grad_avg   = alpha * grad_avg + (1 - alpha) * grad            (centered)
        update     = lr * grad / sqrt(square_avg + eps)               (centered: of square_avg - grad_avg^2)
        momentum_buffer = momentum * momentum_buffer + update         (momentum > 0: used for update below;
                          lr_in_momentum=False: without the lr, which is a factor of the buffer then)
        param      = param - update                                   (decoupled_decay: (1 - weight_decay) * param)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a 0-dim tensor (default 1e-2).
        alpha: decay rate of the averages, at least 0 (default 0.9).
        eps: added to the mean square, inside the root (default 1e-10).
        weight_decay: L2 penalty (default 0).
        momentum: decay rate of the buffer (default 0: no buffer).
        centered: divide by the standard deviation of the gradient (default False).
        decoupled_decay: shrink the parameter by ``weight_decay``, without lr, instead (default False).
        lr_in_momentum: keep lr in the buffer, as TensorFlow does (default True).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedRMSpropTF
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedRMSpropTF([param], lr=0.1)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.8246, 0.8246, 0.8246])
    """

    spec = Spec(
        "rmsprop_tf",
        {
            "square_avg": State(start=1.0, signed=False),
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
        "decoupled_decay": FLAG,
        "lr_in_momentum": FLAG,
    }

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0,
        momentum: float = 0.0,
        centered: bool = False,
        decoupled_decay: bool = False,
        lr_in_momentum: bool = True,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            decoupled_decay=decoupled_decay,
            lr_in_momentum=lr_in_momentum,
        )
        super().__init__(params, defaults, **common)
