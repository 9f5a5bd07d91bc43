"""Tensors that share memory: the step is that of separate tensors, or it is refused and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, each_backend, each_case
from ingot import backends
from state_types import assert_kept, each_state_dtype
from training import (
    assert_same,
    assert_unchanged,
    give_grads,
    picture,
    set_grad,
    tensors_of,
    with_state,
)


def square(seed: int = 0, state_dtype: str | None = None) -> Tensor:
    """A matrix of either kind of state: 66 x 66 elements are enough for codes, and their last block is not full."""
    size = 66 if state_dtype == "8bit" else 6
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


def steps(optimizer: Any, params: list[Tensor], grads: Any, count: int = 3) -> None:
    for step in range(count):
        for param, grad in zip(params, grads(params, step), strict=True):
            set_grad(param, grad)
        optimizer.step()


@each_case
@each_backend
@each_state_dtype
@pytest.mark.parametrize("order", ["same", "transposed"])
def test_a_gradient_that_views_its_parameter(
    case: Case, backend: str, order: str, state_dtype: str | None
) -> None:
    """As if it were a copy taken before the step, whatever the order in which it views the parameter."""

    def view(params: list[Tensor], _: int) -> list[Tensor]:
        return [p.detach().t() if order == "transposed" else p.detach() for p in params]

    def copy(params: list[Tensor], step: int) -> list[Tensor]:
        return [grad.clone() for grad in view(params, step)]

    runs = []
    for grads in (view, copy):
        params: list[Tensor] = [Parameter(square(0, state_dtype))]
        optimizer = with_state(case, params, lr=0.1, backend=backend, state_dtype=state_dtype)
        steps(optimizer, params, grads)
        assert_kept(optimizer, state_dtype)
        runs.append(tensors_of(optimizer))
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=0, atol=0)


@each_case
@each_backend
@each_state_dtype
def test_a_gradient_that_views_another_parameter(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    runs = []
    for copied in (False, True):
        params: list[Tensor] = [Parameter(square(seed, state_dtype)) for seed in (0, 1)]

        def grads(params: list[Tensor], _: int, copied: bool = copied) -> list[Tensor]:
            views = [params[1].detach(), params[0].detach().t()]
            return [view.clone() for view in views] if copied else views

        optimizer = with_state(case, params, lr=0.1, backend=backend, state_dtype=state_dtype)
        steps(optimizer, params, grads)
        assert_kept(optimizer, state_dtype)
        runs.append(tensors_of(optimizer))
    for name, value in runs[0].items():
        torch.testing.assert_close(value, runs[1][name], rtol=0, atol=0)


@each_case
@each_backend
@each_state_dtype
def test_parameters_that_share_memory_are_updated_one_by_one(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    """The second sees what the first wrote, also where norms of whole tensors are taken (LAMB, AdamP)."""
    # BertAdam clips by the norm over all of a group, which separate optimizers would not share.
    options = {"lr": 0.1, "backend": backend, "state_dtype": state_dtype}
    options |= {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    shared, alone = square(0, state_dtype), square(1, state_dtype)
    params: list[Tensor] = [Parameter(shared), Parameter(shared.t()), Parameter(alone)]
    optimizer = with_state(case, params, **options)
    apart = [Parameter(square(seed, state_dtype)) for seed in (0, 1)]
    apart.insert(1, Parameter(apart[0].detach().t()))  # the blocks of codes follow its rows
    each_alone = [with_state(case, [param], **options) for param in apart]
    for step in range(3):
        give_grads(params, step)
        grads = [param.grad.clone() for param in params if param.grad is not None]
        optimizer.step()
        for one, param, grad in zip(each_alone, apart, grads, strict=True):
            set_grad(param, grad)
            one.step()
        torch.testing.assert_close(shared, apart[0].detach(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(params[2], apart[2], rtol=1e-6, atol=1e-7)
        assert_kept(optimizer, state_dtype)


@each_case
@each_backend
@each_state_dtype
@pytest.mark.parametrize("other", ["parameter", "gradient", "state"])
def test_a_state_that_shares_memory_is_refused(
    case: Case, backend: str, other: str, state_dtype: str | None
) -> None:
    """A float32 state as a whole; of codes the codes and the scales, which are seen as what they lie in."""
    parts = ("", "_scale") if state_dtype == "8bit" else ("",)
    for part in parts:
        params: list[Tensor] = [Parameter(square(seed, state_dtype)) for seed in (0, 1)]
        optimizer = with_state(case, params, lr=0.1, backend=backend, state_dtype=state_dtype)
        give_grads(params, 0)
        optimizer.step()
        assert_kept(optimizer, state_dtype)
        slots, theirs = (optimizer.state[param] for param in params)
        name = next(name for name, value in slots.items() if isinstance(value, Tensor)) + part
        grad = params[1].grad
        assert grad is not None
        memory = {"parameter": params[0].detach(), "gradient": grad, "state": theirs[name]}[other]
        bytes_of = memory.reshape(-1).view(slots[name].dtype)
        slots[name] = bytes_of[: slots[name].numel()].view(slots[name].shape)
        assert_refused(case, optimizer)


def assert_refused(case: Case, optimizer: Any) -> None:
    before = picture(optimizer)
    with pytest.raises(
        RuntimeError, match=rf"{case.kind.__name__}: parameter .* shares memory with"
    ):
        optimizer.step()
    assert_unchanged(optimizer, before)


def test_columns_of_one_tensor_are_states_of_their_own() -> None:
    """They lie between each other's addresses, but no element belongs to both."""
    params: list[Tensor] = [Parameter(square()[:, :3].clone()), Parameter(square()[:, 3:].clone())]
    optimizer = with_state(CASES["adamw"], params, lr=0.1)
    plain = with_state(CASES["adamw"], [Parameter(p.detach().clone()) for p in params], lr=0.1)
    for step in range(3):
        for each in (optimizer, plain):
            give_grads(each.all_params(), step)
            each.step()
        whole = torch.zeros(6, 6)
        for param, view in zip(params, (whole[:, :3], whole[:, 3:]), strict=True):
            optimizer.state[param]["exp_avg"] = view.copy_(optimizer.state[param]["exp_avg"])
    for one, other in zip(params, plain.all_params(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*duplicate parameters.*:UserWarning")
@each_backend
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_parameter_given_twice_is_updated_twice(name: str, backend: str) -> None:
    """One after the other, as torch.optim's loop does."""
    case = CASES[name]
    assert case.torch_kind is not None
    ours, theirs = (Parameter(torch.arange(1.0, 4.0)) for _ in range(2))
    optimizers = [
        case.make([ours, ours], lr=0.1, backend=backend),
        case.torch_kind([theirs, theirs], lr=0.1, foreach=False),  # type: ignore[call-arg]
    ]
    for step in range(3):
        for param, optimizer in zip((ours, theirs), optimizers, strict=True):
            give_grads([param], step)
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=1e-6)
    if case.kind.spec.counted:
        assert optimizers[0].state[ours]["step"] == 6


@pytest.mark.parametrize("core", [True, False], ids=["core", "no core"])
@pytest.mark.parametrize("backend", ["native", "lists"])
def test_what_moves_into_another_after_some_steps(
    backend: str, core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A remembered plan looks for overlaps again as soon as an address differs, with the core and without it."""
    if not core:
        if backend == "native":
            pytest.skip("native is the core")
        monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")
    runs = []
    for remembers in (True, False):
        torch.manual_seed(0)
        params = [Parameter(torch.randn(300, 300)) for _ in range(2)]
        optimizer = CASES["lamb"].make(params, lr=0.1, backend=backend)
        for step in range(4):
            give_grads(params, step)
            optimizer.step()
        if not remembers:
            saved = optimizer.state_dict()
            optimizer = CASES["lamb"].make(params, lr=0.1, backend=backend)
            optimizer.load_state_dict(saved)
        base = torch.randn(450, 300)
        params[0].data, params[1].data = base[:300], base[150:]
        give_grads(params, 5)
        optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs)
