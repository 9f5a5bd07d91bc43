"""Optimizers with 8-bit states that were trained, and others like them, for the tests of checkpoints."""

from __future__ import annotations

from typing import Any

import torch

from cases import CASES, Case
from ingot.optimizer import FusedOptimizer
from training import make_params, params_of, through_a_file, train, with_state

SHAPES = [(64, 70), (7,), (4, 8, 12, 12)]
EIGHT: dict[str, Any] = {"state_dtype": "8bit", "lr": 0.03}
TORCH = [name for name, case in CASES.items() if case.torch_kind is not None]


def trained(case: Case, steps: int = 3, **options: Any) -> FusedOptimizer:
    params = make_params(SHAPES)
    params[2] = torch.nn.Parameter(params[2].detach().to(memory_format=torch.channels_last))
    optimizer = with_state(case, params, **{**EIGHT, **options})
    train(optimizer, params, steps)
    return optimizer


def twin(case: Case, one: torch.optim.Optimizer, **options: Any) -> FusedOptimizer:
    """Another optimizer over copies of the parameters."""
    params = [p.detach().clone().requires_grad_() for p in params_of(one)]
    return with_state(case, params, **{**EIGHT, **options})


def go_on(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        train(optimizer, params_of(optimizer), 3, first=3)


def through_float32(optimizer: FusedOptimizer) -> dict[str, Any]:
    return through_a_file(optimizer.state_dict(dtype=torch.float32))
