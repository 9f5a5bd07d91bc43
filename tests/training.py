"""Parameters, gradients and comparisons that the tests share."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from cases.declare import Case
from ingot.optimizer import FusedOptimizer

# Around the width of SIMD registers, with and without rows, none, one and several dimensions.
SHAPES = [(7,), (4, 3), (), (1,), (0,), (3, 0), (2, 3, 2, 2), (33, 31), (64,), (65,), (1, 17)]


def make_params(
    shapes: Iterable[Sequence[int]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    """Parameters with normally distributed values; the same values for the same seed, in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Parameter(torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def give_grads(params: Sequence[Tensor], step: int, dtype: torch.dtype | None = None) -> None:
    """New gradients for step ``step``, of the parameters' type or another; the same for the same step."""
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        set_grad(param, grad.to(dtype or param.dtype))


def set_grad(param: Tensor, grad: Tensor) -> None:
    """Set a gradient of any type or layout, as autograd hooks and wrappers may."""
    param.grad = None
    if grad.dtype is not param.dtype:
        param.grad_dtype = grad.dtype
    param.grad = grad


def train(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    steps: int,
    first: int = 0,
    dtype: torch.dtype | None = None,
) -> None:
    """Make steps ``first`` to ``first + steps - 1`` with their own gradients."""
    for step in range(first, first + steps):
        give_grads(params, step, dtype)
        optimizer.step()


def params_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def tensors_of(optimizer: Optimizer) -> dict[str, Tensor]:
    """Every parameter and every state tensor (step counts too) under a telling name."""
    result = {}
    for number, param in enumerate(params_of(optimizer)):
        result[f"param {number} {tuple(param.shape)}"] = param.detach()
        for name, value in sorted(optimizer.state.get(param, {}).items()):
            result[f"{name} {number} {tuple(param.shape)}"] = torch.as_tensor(value)
    return result


def assert_same(
    actual: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 0, atol: float = 0
) -> None:
    """The same names, dtypes and numbers; bit for bit unless told otherwise."""
    assert list(actual) == list(expected)
    for name, value in actual.items():
        torch.testing.assert_close(
            value,
            expected[name],
            rtol=rtol,
            atol=atol,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def picture(optimizer: Optimizer) -> dict[str, Any]:
    """Copies of everything a failed call must leave as it was."""
    return {
        "tensors": {name: value.clone() for name, value in tensors_of(optimizer).items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in params_of(optimizer)],
        "state keys": [sorted(optimizer.state.get(p, {})) for p in params_of(optimizer)],
        "known": len(optimizer.state),
        "options": [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
        "params": [list(map(id, group["params"])) for group in optimizer.param_groups],
    }


def assert_unchanged(optimizer: Optimizer, before: dict[str, Any]) -> None:
    """Nothing is different from the picture taken before, not one bit."""
    after = picture(optimizer)
    assert_same(after.pop("tensors"), before["tensors"])
    for new, old in zip(after.pop("grads"), before["grads"], strict=True):
        assert (new is None) == (old is None)
        if new is not None and new.layout is torch.strided and not new.is_meta:
            torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
    assert after == {name: before[name] for name in after}


def with_state(case: Case, params: Any, **options: Any) -> FusedOptimizer:
    """Build the optimizer; SGD gets momentum, so that every optimizer under test has a state."""
    return case.make(params, **({"momentum": 0.9} if case.name == "sgd" else {}), **options)


def unclipped(case: Case) -> dict[str, float]:
    """BertAdam clips by the norm of its whole group: switched off where parameters are looked at alone."""
    return {"max_grad_norm": -1} if case.name == "bert_adam" else {}


def through_a_file(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Saved and loaded again, by the loader that runs no code."""
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def small_model() -> nn.Module:
    """A network with matrices and vectors; always the same numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


def fit(net: nn.Module, optimizer: Optimizer, steps: int = 3) -> list[float]:
    """A small training loop; the losses."""
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
