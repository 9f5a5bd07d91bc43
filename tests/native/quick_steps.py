"""Optimizers on the quick path, and kept off it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cases import CASES
from training import train


def whole_path(optimizer: Any) -> Any:
    """The same optimizer, kept on the whole path by a hook that does nothing."""
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def steady(**options: Any) -> tuple[Any, Tensor]:
    param = Parameter(torch.ones(3))
    optimizer = CASES["adamw"].make([param], lr=0.1, **options)
    train(optimizer, [param], 4)
    assert optimizer._quick is not None
    return optimizer, param
