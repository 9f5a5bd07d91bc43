"""Nothing lives longer than its user wants it to: optimizers, parameters, gradients and states."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from cases import Case, each_backend, each_case
from training import give_grads, make_params, train, with_state

SHAPES = [(4, 3), (5,)]


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """What dies must die by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def state_of(optimizer: torch.optim.Optimizer, param: Tensor) -> Tensor:
    return next(v for v in optimizer.state[param].values() if isinstance(v, Tensor))


@each_case
@each_backend
@pytest.mark.parametrize("count", [1, 2, 4])
def test_an_optimizer_is_in_no_cycle(case: Case, backend: str, count: int) -> None:
    params = make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, count)
    state = weakref.ref(state_of(optimizer, params[0]))
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None
    assert state() is None


@each_case
@each_backend
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_cleared_is_gone(case: Case, backend: str, count: int) -> None:
    params = make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, count)
    state = weakref.ref(state_of(optimizer, params[0]))
    param, grad = weakref.ref(params[0]), weakref.ref(params[0].grad)  # type: ignore[arg-type]
    optimizer.zero_grad()
    assert grad() is None
    optimizer.state.clear()
    assert state() is None
    optimizer.param_groups.clear()
    params.clear()
    assert param() is None


@each_case
@each_backend
def test_states_made_in_inference_mode_are_ordinary_tensors(case: Case, backend: str) -> None:
    """So a step inside it, or a state loaded inside it, does not spoil later steps."""
    params, others = make_params(SHAPES), make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    plain = with_state(case, others, backend=backend)
    give_grads(params, 0)
    with torch.inference_mode():
        optimizer.step()
    train(plain, others, 1)
    assert not state_of(optimizer, params[0]).is_inference()
    train(optimizer, params, 2, first=1)
    train(plain, others, 2, first=1)
    for one, other in zip(params, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@each_case
@each_backend
def test_an_inference_state_is_replaced_and_an_inference_parameter_refused(
    case: Case, backend: str
) -> None:
    params = make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, 1)
    name, value = next(
        (n, v) for n, v in optimizer.state[params[0]].items() if isinstance(v, Tensor)
    )
    with torch.inference_mode():
        optimizer.state[params[0]][name] = value.clone()
    train(optimizer, params, 1, first=1)
    assert not optimizer.state[params[0]][name].is_inference()

    with torch.inference_mode():
        strange = torch.zeros(3)
        strange.grad = torch.ones(3)
        refusing = with_state(case, [strange], backend=backend)
        with pytest.raises(RuntimeError, match="inference tensor"):
            refusing.step()
        assert not refusing.state and bool((strange == 0).all())
