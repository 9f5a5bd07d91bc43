"""Gradients released inside backward on a device: the numbers of normal steps, also with states in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from offload_pairs import assert_same_bits, to_npu
from torch import Tensor

from cases import Case, each_case
from training import assert_same, make_params, tensors_of

SHAPES = [(7,), (), (0,), (4, 3), (70, 65), (130, 127), (33, 31), (16384,)]
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "master weights, 8-bit states": (
        torch.bfloat16,
        {"master_weights": True, "state_dtype": "8bit"},
    ),
}
each_precision = pytest.mark.parametrize(
    ("dtype", "more"), PRECISIONS.values(), ids=PRECISIONS.keys()
)


def make(case: Case, params: Sequence[Tensor], **options: Any) -> Any:
    return case.make(params, **options, max_grad_norm=-1 if case.name == "bert_adam" else None)


def train(optimizer: Any, steps: int = 5) -> None:
    """All gradients come from one backward; the same on every device."""
    params = optimizer.all_params()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        factors = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in params]
        sums = [(p * f.to(p.device)).sum() for p, f in zip(params, factors, strict=True)]
        torch.stack(sums).sum().backward()
        if optimizer._released is not None:
            assert all(param.grad is None for param in params)
        optimizer.step()


@each_case
@each_precision
def test_on_a_device(case: Case, dtype: torch.dtype, more: dict[str, Any]) -> None:
    runs = []
    for released in (False, True):
        optimizer = make(case, to_npu(make_params(SHAPES, dtype)), **more)
        if released:
            optimizer.release_gradients()
        train(optimizer)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@each_case
@each_precision
@pytest.mark.parametrize("first", ["offload", "release"])
def test_with_states_in_host_memory(
    case: Case, dtype: torch.dtype, more: dict[str, Any], first: str
) -> None:
    """Whichever hooks the parameters first: a step attaches those of the transfer."""
    params = make_params(SHAPES, dtype)
    near = make(case, params, **more)
    away = make(case, to_npu(params), **more, offload="cpu")
    if first == "offload":
        train(near, 2)
        train(away, 2)
    away.zero_grad()
    with away.release_gradients():
        train(away)
    train(near)
    assert_same_bits(away, near)
    train(near, 2)
    train(away, 2)
    assert_same_bits(away, near)
