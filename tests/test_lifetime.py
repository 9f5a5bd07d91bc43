"""Nothing lives longer than its user wants it to: optimizers, parameters, gradients and states."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from cases import Case, each_backend, each_case
from state_types import assert_kept, each_state_dtype, enough
from training import give_grads, make_params, train, with_state

SHAPES = [(4, 3), (5,)]


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """What dies must die by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def states_of(optimizer: torch.optim.Optimizer, param: Tensor) -> list[Tensor]:
    return [each for each in optimizer.state[param].values() if isinstance(each, Tensor)]


@each_case
@each_backend
@each_state_dtype
@pytest.mark.parametrize("count", [1, 2, 4])
def test_an_optimizer_is_in_no_cycle(
    case: Case, backend: str, count: int, state_dtype: str | None
) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    optimizer = with_state(case, params, backend=backend, state_dtype=state_dtype)
    train(optimizer, params, count)
    assert_kept(optimizer, state_dtype)
    states = [weakref.ref(each) for each in states_of(optimizer, params[0])]
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None
    assert not any(state() is not None for state in states)


@each_case
@each_backend
@each_state_dtype
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_cleared_is_gone(
    case: Case, backend: str, count: int, state_dtype: str | None
) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    optimizer = with_state(case, params, backend=backend, state_dtype=state_dtype)
    train(optimizer, params, count)
    assert_kept(optimizer, state_dtype)
    states = [weakref.ref(each) for each in states_of(optimizer, params[0])]
    param, grad = weakref.ref(params[0]), weakref.ref(params[0].grad)  # type: ignore[arg-type]
    optimizer.zero_grad()
    assert grad() is None
    optimizer.state.clear()
    assert not any(state() is not None for state in states)
    optimizer.param_groups.clear()
    params.clear()
    assert param() is None


@each_case
@each_backend
@each_state_dtype
def test_states_made_in_inference_mode_are_ordinary_tensors(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    """So a step inside it, or a state loaded inside it, does not spoil later steps."""
    params, others = (make_params(enough(SHAPES, state_dtype)) for _ in range(2))
    optimizer, plain = (
        with_state(case, each, backend=backend, state_dtype=state_dtype)
        for each in (params, others)
    )
    give_grads(params, 0)
    with torch.inference_mode():
        optimizer.step()
    train(plain, others, 1)
    assert_kept(optimizer, state_dtype)
    assert not any(state.is_inference() for state in states_of(optimizer, params[0]))
    train(optimizer, params, 2, first=1)
    train(plain, others, 2, first=1)
    for one, other in zip(params, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@each_case
@each_backend
@each_state_dtype
@pytest.mark.parametrize("before", [1, 2, 5])  # then planned afresh, from memory, on the quick path
def test_an_inference_state_is_replaced_and_an_inference_parameter_refused(
    case: Case, backend: str, state_dtype: str | None, before: int
) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    optimizer = with_state(case, params, backend=backend, state_dtype=state_dtype)
    train(optimizer, params, before)
    assert_kept(optimizer, state_dtype)
    slots = optimizer.state[params[0]]
    with torch.inference_mode():
        for name in [name for name, value in slots.items() if isinstance(value, Tensor)]:
            slots[name] = slots[name].clone()
    train(optimizer, params, 1, first=before)
    assert not any(state.is_inference() for state in states_of(optimizer, params[0]))
    values = params[0].detach().clone()
    with torch.inference_mode():
        params[0].data = values.clone()
    give_grads(params, before + 1)
    with pytest.raises(RuntimeError, match="inference tensor"):
        optimizer.step()
    assert torch.equal(params[0], values)

    with torch.inference_mode():
        strange = torch.zeros(3)
        strange.grad = torch.ones(3)
        refusing = with_state(case, [strange], backend=backend)
        with pytest.raises(RuntimeError, match="inference tensor"):
            refusing.step()
        assert not refusing.state and bool((strange == 0).all())
