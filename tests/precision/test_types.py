"""Every type of parameter, gradient and state against the same step in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import Case, each_backend, each_case
from ingot.optimizer import FusedOptimizer
from training import make_params, set_grad

SHAPES = [(7,), (4, 3), (), (2, 3, 2, 2), (33, 5), (65,)]
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
SETTINGS = [
    (param, state, masters)
    for param, states in {
        HALF: (None, "param", HALF, BRAIN, SINGLE),
        BRAIN: (None, "param", HALF, BRAIN, SINGLE),
        SINGLE: (None, "param", HALF, BRAIN),
        DOUBLE: (None, "param"),
    }.items()
    for state in states
    for masters in (False, True)
]


def bounded_grads(step: int, dtype: torch.dtype) -> list[Tensor]:
    """Magnitudes from 0.5 to 2: their squares, times 1 - beta2, are normal numbers in float16 as well."""
    generator = torch.Generator().manual_seed(step)
    return [
        (
            torch.randn(shape, generator=generator).sign()
            * (0.5 + 1.5 * torch.rand(shape, generator=generator))
        ).to(dtype)
        for shape in SHAPES
    ]


def wide_twin(
    case: Case, optimizer: FusedOptimizer, wide: torch.dtype, options: dict[str, Any]
) -> FusedOptimizer:
    """The optimizer as it is now, with everything in ``wide``, on the reference backend."""
    params = optimizer.param_groups[0]["params"]
    states = [optimizer.state.get(param, {}) for param in params]
    twins = [
        state.get("master_param", param.detach()).to(wide, copy=True).requires_grad_()
        for param, state in zip(params, states, strict=True)
    ]
    twin = case.make(twins, **options, backend="reference")
    for one, state, param in zip(twins, states, params, strict=True):
        assert param.grad is not None
        one.grad = param.grad.to(wide)
        twin.state[one] = {
            name: value.to(wide, copy=True) if isinstance(value, Tensor) else value
            for name, value in state.items()
            if name != "master_param"
        }
    return twin


def expected_type(param: torch.dtype, state: Any) -> torch.dtype:
    """The type a state must have."""
    if isinstance(state, torch.dtype):
        return state
    if state == "param" or param is DOUBLE:
        return param
    return SINGLE


def check_step(
    optimizer: FusedOptimizer, twin: FusedOptimizer, old: list[Tensor], state: torch.dtype
) -> None:
    """What is stored is the nearest to what float32 computes, but for float32's own rounding.

    The direction is defined on states as stored. Where those are rounded, the step may differ from the twin's
    by their relative error: 2^-8 of bfloat16, twice for the two averages and some more for their rounding.
    """
    moved = 0.0 if state.itemsize >= 4 else 2.0**-6
    pairs = zip(
        optimizer.param_groups[0]["params"], twin.param_groups[0]["params"], old, strict=True
    )
    for param, wide, before in pairs:
        exact, slots = wide.detach(), optimizer.state[param]
        own = 4 * torch.finfo(wide.dtype).eps  # sums of two-pass optimizers, the root
        lists = (
            2 * own if optimizer.backend == "lists" else 0.0
        )  # last bits of the states, see below
        step = (exact - before).abs().max()
        margin = own * (exact.abs() + before.abs()) + (moved + lists) * step + 1e-37
        if "master_param" in slots:
            stored = slots["master_param"]
            assert stored.dtype is SINGLE
            assert torch.equal(param.detach(), stored.to(param.dtype))
        else:
            stored = param.detach().to(wide.dtype)
            if param.dtype.itemsize == 2:
                margin = margin + torch.finfo(param.dtype).eps / 2 * (exact.abs() + margin)
        assert torch.all((stored - exact).abs() <= margin), (stored - exact, margin)
        for name in optimizer.spec.states.keys() & slots.keys():
            assert slots[name].dtype is state
            rounded = twin.state[wide][name].to(state)
            rtol, atol = own, 0.0
            if optimizer.backend == "lists":
                # m + w * (g - m) instead of b * m + w * g: an error of the larger term stays where they cancel, and
                # a 16-bit state may be rounded to the other neighbour.
                info = torch.finfo(state)
                rtol = max(own, info.eps)
                atol = rtol * info.tiny + 4 * own * float(rounded.double().abs().max())
            torch.testing.assert_close(slots[name], rounded, rtol=rtol, atol=atol)


@each_case
@each_backend
@pytest.mark.parametrize(("param", "state", "masters"), SETTINGS)
def test_as_in_float32(
    case: Case, backend: str, param: torch.dtype, state: Any, masters: bool
) -> None:
    wide = DOUBLE if param is DOUBLE else SINGLE
    options = {"lr": 0.05, "weight_decay": 0.1, "max_grad_norm": -1.0}
    if case.name != "bert_adam":
        del options["max_grad_norm"]
    if case.name == "sgd":
        options["momentum"] = 0.9
    for grad in [DOUBLE] if param is DOUBLE else [SINGLE, HALF, BRAIN]:
        params = make_params(SHAPES, param)
        optimizer = case.make(
            params, **options, backend=backend, state_dtype=state, master_weights=masters
        )
        for step in range(3):
            for each, value in zip(params, bounded_grads(step, grad), strict=True):
                set_grad(each, value)
            twin = wide_twin(case, optimizer, wide, options)
            old = [each.detach().clone() for each in twin.param_groups[0]["params"]]
            optimizer.step()
            twin.step()
            check_step(optimizer, twin, old, expected_type(param, state))
            for each in params:
                kept = {"master_param"} & optimizer.state[each].keys()
                assert bool(kept) == (masters and param.itemsize == 2)


@each_case
@each_backend
@pytest.mark.parametrize("grad", [SINGLE, HALF, BRAIN], ids=str)
def test_float64_parameters_with_other_gradients(
    case: Case, backend: str, grad: torch.dtype
) -> None:
    """Computed in float64 or refused by a backend that is named; never rounded on the way."""
    params, twins = make_params(SHAPES, DOUBLE), make_params(SHAPES, DOUBLE)
    optimizer = case.make(params, lr=0.05, backend=backend)
    twin = case.make(twins, lr=0.05, backend="reference")
    for each, one, value in zip(params, twins, bounded_grads(0, grad), strict=True):
        set_grad(each, value)
        set_grad(one, value.double())
    try:
        optimizer.step()
    except RuntimeError as error:
        assert backend == "native" and "float64" in str(error)
        optimizer.backend = None
        optimizer.step()
    twin.step()
    for each, one in zip(params, twins, strict=True):
        torch.testing.assert_close(each, one, rtol=1e-14, atol=1e-15)


@each_case
@each_backend
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
def test_a_parameter_changed_from_outside_wins_over_its_master(
    case: Case, backend: str, dtype: torch.dtype
) -> None:
    """Someone loads weights or clips them: the step goes on from there, elsewhere from the master."""
    [param] = make_params([(6, 5)], dtype)
    lr = 50.0 if case.name == "adadelta" else 0.05  # it scales updates that are small at first
    optimizer = case.make([param], lr=lr, backend=backend, master_weights=True)
    for step in range(2):
        set_grad(param, bounded_grads(step, dtype)[1].repeat(2, 2)[:6, :5])
        if step == 1:
            before = optimizer.state[param]["master_param"].clone()
            with torch.no_grad():
                param[2:4] = 0.75
                param[0, 0] = torch.nan
            expected = before.clone()
            expected[2:4], expected[0, 0] = 0.75, torch.nan
            start = param.detach().clone()
            # The same step from float32 values: nothing of the master's extra bits may be lost.
            twin_param = expected.clone().requires_grad_()
            twin = case.make([twin_param], lr=lr, backend=backend)
            twin_param.grad = param.grad.float()
            twin.state[twin_param] = {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in optimizer.state[param].items()
                if name != "master_param"
            }
            twin.step()
        optimizer.step()
    master = optimizer.state[param]["master_param"]
    torch.testing.assert_close(master, twin_param.detach(), rtol=0, atol=0, equal_nan=True)
    assert master[0, 0].isnan() and not torch.equal(param[2:4], start[2:4])
