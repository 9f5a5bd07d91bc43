"""SGD with momentum, as torch.optim.SGD defines it (https://proceedings.mlr.press/v28/sutskever13.html)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.optim.optimizer import required

from ingot.declare.options import FINITE, FLAG, LR, MOMENTUM, WEIGHT_DECAY, Number, OptionError
from ingot.declare.spec import Group, Spec, State, learning_rate
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1: the decay goes through the gradient
    rate: float  # lr
    weight_decay: float
    momentum: float
    blend: float  # 1 - dampening, 1 the first time


def scalars(group: Group, step: int) -> Scalars:
    """A zero buffer and ``blend`` 1 make the first buffer the gradient itself."""
    return Scalars(
        keep=1.0,
        rate=learning_rate(group),
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        blend=1.0 if step == 1 else 1 - group["dampening"],
    )


def advance(
    param: Any, grad: Any, momentum_buffer: Any, s: Any, *, momentum: bool, weight_decay: bool
) -> tuple[Any, ...]:
    """The running sum of decayed gradients."""
    if momentum:
        if weight_decay:
            grad = grad + s.weight_decay * param
        momentum_buffer = s.momentum * momentum_buffer + s.blend * grad
    return (momentum_buffer,)


def direction(
    param: Any,
    grad: Any,
    momentum_buffer: Any,
    s: Any,
    *,
    momentum: bool,
    nesterov: bool,
    weight_decay: bool,
) -> Any:
    """The decayed gradient, its running sum, or (nesterov) one look ahead along the sum."""
    if momentum and not nesterov:
        return momentum_buffer
    if weight_decay:
        grad = grad + s.weight_decay * param
    return grad + s.momentum * momentum_buffer if momentum else grad


class NpuFusedSGD(FusedOptimizer):
    """Stochastic gradient descent with momentum, as torch.optim.SGD computes it.

    ::

        grad            = grad + weight_decay * param
        momentum_buffer = momentum * momentum_buffer + (1 - dampening) * grad      (the first time: grad)
        param           = param - lr * momentum_buffer
                          nesterov: param - lr * (grad + momentum * momentum_buffer)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a tensor of one element; required, here or in every group.
        momentum: decay rate of the buffer (default 0: no buffer).
        dampening: weight taken off the gradient (default 0).
        weight_decay: L2 penalty (default 0).
        nesterov: Nesterov momentum; needs momentum > 0 and dampening 0 (default False).
        **common: ``maximize``, ``max_grad_norm``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedSGD
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedSGD([param], lr=0.1, momentum=0.9)
        >>> param.square().sum().backward()
        >>> optimizer.step()
        >>> param.detach()
        tensor([0.8000, 0.8000, 0.8000])
    """

    spec = Spec(
        "sgd",
        {"momentum_buffer": State("momentum")},
        scalars,
        advance,
        direction,
        counted=False,
    )
    rules = {
        "lr": LR,
        "momentum": MOMENTUM,
        "dampening": FINITE,
        "weight_decay": WEIGHT_DECAY,
        "nesterov": FLAG,
    }

    def __init__(
        self,
        params: Params,
        lr: Number = required,  # type: ignore[assignment]
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **common: Unpack[Common],
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        super().__init__(params, defaults, **common)

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        """Nesterov momentum needs plain momentum."""
        super().check(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise OptionError(
                "Nesterov momentum requires a momentum and zero dampening "
                f"({cls.__name__}: nesterov=True needs momentum > 0 and dampening = 0, "
                f"got momentum={group['momentum']!r}, dampening={group['dampening']!r})"
            )
