"""Training by gradients from backward passes, with and without a step inside backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cases import Case
from ingot.step.parcels import WORTH_AN_UPDATE

# Small ones that are updated together, and two that are large enough for an update of their own.
SHAPES = [(7,), (4, 3), (), (0,), (130, 127), (33, 31), (2, 3, 2, 2), (65,), (WORTH_AN_UPDATE,)]


def unclipped(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that need all gradients at once."""
    options = {**options, "max_grad_norm": -1 if case.name == "bert_adam" else None}
    return options | ({"use_global_grad_norm": False} if case.name == "lamb" else {})


def make(case: Case, params: Any, **options: Any) -> Any:
    return case.make(params, **unclipped(case, options))


def backward(params: Sequence[Tensor], step: int, without: Sequence[int] = ()) -> None:
    """Gradients for step ``step``, from a backward pass; the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    total = torch.zeros(())
    for number, param in enumerate(params):
        factor = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        if number not in without:
            total = total + (param * factor.to(param.dtype)).sum().abs().float()
    total.backward()


def train(
    optimizer: Any,
    params: Sequence[Tensor],
    steps: int = 6,
    first: int = 0,
    without: Callable[[int], Sequence[int]] = lambda step: (),
) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        backward(params, step, without(step))
        if optimizer._released is not None:
            assert all(param.grad is None for param in params)
        optimizer.step()


def adamw(params: Any, **options: Any) -> Any:
    from ingot import AdamW

    return AdamW(params, lr=0.01, **options)
