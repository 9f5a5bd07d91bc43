"""What torch_npu.optim refuses or gets wrong about types, options and memory, one test per finding."""

import pytest
import torch
from torch.nn import Parameter

from cases import Case, each_backend, each_case
from training import assert_same, give_grads, make_params, tensors_of, train, unclipped, with_state


@each_backend
@each_case
def test_float16_with_the_default_eps_stays_finite(case: Case, backend: str) -> None:
    """eps=1e-8 is 0 in float16, and so is the square of a small gradient: 0 / 0."""
    params = [Parameter(torch.ones(33, dtype=torch.float16)) for _ in range(2)]
    optimizer = with_state(case, params, lr=0.01, backend=backend, **unclipped(case))
    for _ in range(3):
        params[0].grad = torch.full((33,), 1e-4, dtype=torch.float16)
        params[1].grad = torch.zeros(33, dtype=torch.float16)
        optimizer.step()
    for param in params:
        assert torch.isfinite(param).all()
    reference = [Parameter(torch.ones(33)) for _ in range(2)]
    wide = with_state(case, reference, lr=0.01, backend="reference", **unclipped(case))
    for _ in range(3):
        reference[0].grad = torch.full((33,), 1e-4, dtype=torch.float16).float()
        reference[1].grad = torch.zeros(33)
        wide.step()
    for param, expected in zip(params, reference, strict=True):
        # Three steps, each rounded to float16: an ulp of 1 is 2^-10 above and 2^-11 below.
        torch.testing.assert_close(param.float(), expected, rtol=3 * 2.0**-11, atol=0)


@each_backend
@each_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_types_that_were_refused(case: Case, dtype: torch.dtype, backend: str) -> None:
    params, wide = make_params([(33,), (4, 3)], dtype), make_params([(33,), (4, 3)], dtype)
    wide = [Parameter(p.detach().double()) for p in wide]
    optimizer = with_state(case, params, lr=0.1, backend=backend)
    expected = with_state(case, wide, lr=0.1, backend="reference")
    for step in range(3):
        give_grads(params, step)
        for one, two in zip(params, wide, strict=True):
            two.grad = one.grad.double()
        optimizer.step()
        expected.step()
    error = 2.0**-7 if dtype is torch.bfloat16 else 1e-13
    for one, two in zip(params, wide, strict=True):
        torch.testing.assert_close(one.double(), two.detach(), rtol=error, atol=3 * error)


@each_backend
@each_case
def test_maximize_is_descent_on_the_negative(case: Case, backend: str) -> None:
    ups, downs = make_params(), make_params()
    up = with_state(case, ups, maximize=True, backend=backend)
    down = with_state(case, downs, backend=backend)
    for step in range(3):
        give_grads(ups, step)
        for one, two in zip(ups, downs, strict=True):
            two.grad = -one.grad
        up.step()
        down.step()
    assert_same(tensors_of(up), tensors_of(down))


@each_backend
@each_case
@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_both_ways(case: Case, to_none: bool, backend: str) -> None:
    params = make_params()
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, 1)
    optimizer.zero_grad(set_to_none=to_none)
    if to_none:
        assert all(param.grad is None for param in params)
    else:
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in params)
    train(optimizer, params, 1, first=1)


@each_backend
@each_case
@pytest.mark.parametrize(
    "move", ["data", "round trip", "set_", "new storage, old gradient", "double and back"]
)
def test_reallocated_parameters(case: Case, move: str, backend: str) -> None:
    """The documents forbid every one of these; here the step follows the tensors as they are."""
    params, still = make_params(), make_params()
    moved, expected = (
        with_state(case, params, backend=backend),
        with_state(case, still, backend=backend),
    )
    for step in range(4):
        for param in params:
            if move == "data":
                param.data = param.data.clone()
            elif move == "round trip":
                param.data = torch.from_numpy(param.data.numpy().copy())
            elif move == "set_":
                param.data.set_(param.data.clone())
            elif move == "double and back":
                param.data = param.data.double().float()
        give_grads(params, step)
        give_grads(still, step)
        if move == "new storage, old gradient":
            for param in params:
                param.data = param.data.clone()
        moved.step()
        expected.step()
    assert_same(tensors_of(moved), tensors_of(expected))
