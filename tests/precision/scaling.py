"""Steps through a GradScaler, good and overflowing, for the tests in this folder."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from ingot.optimizer import FusedOptimizer
from training import give_grads, params_of

SHAPES = [(7,), (4, 3), (), (2, 3, 2, 2), (33, 5)]

# What a 16-bit parameter can be trained with.
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32 states": {},
    "16-bit states": {"state_dtype": "param"},
    "stochastic": {"state_dtype": "param", "rounding": "stochastic", "rounding_seed": 3},
    "masters": {"master_weights": True},
    "all": {
        "master_weights": True,
        "state_dtype": torch.bfloat16,
        "rounding": "stochastic",
    },
}


def scale_grads(scaler: GradScaler, params: Sequence[Tensor]) -> None:
    """What backward() of a scaled loss leaves behind; a scale of 2^n changes no bit of a gradient."""
    if scaler._scale is None:
        scaler.scale(torch.zeros(()))  # makes the scale
    for param in params:
        if param.grad is not None:
            param.grad.mul_(scaler.get_scale())


def spoil(params: Sequence[Tensor], value: float = float("inf")) -> None:
    """One element of one gradient overflows."""
    grad = params[1].grad
    assert grad is not None
    grad.view(-1)[2] = value


def amp_step(
    optimizer: FusedOptimizer, scaler: GradScaler, step: int, *, overflow: bool = False
) -> None:
    """One iteration of a training loop, with the gradients of step ``step``."""
    params = params_of(optimizer)
    give_grads(params, step)
    scale_grads(scaler, params)
    if overflow:
        spoil(params, float("nan") if step % 2 else float("inf"))
    scaler.step(optimizer)
    scaler.update()
