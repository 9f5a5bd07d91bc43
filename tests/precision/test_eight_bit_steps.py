"""What every step promises also holds with 8-bit states: the formula, any layout, changes between steps, failures."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from scaling import amp_step
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter

from cases import BACKENDS, CASES, Case, Options, each_case, each_setting
from ingot.optim import NpuFusedAdamW
from ingot.optimizer import FusedOptimizer
from ingot.storage.blockwise8 import BLOCK, SIGNED, UNSIGNED
from training import (
    assert_same,
    assert_unchanged,
    give_grads,
    make_params,
    params_of,
    picture,
    tensors_of,
    train,
    with_state,
)

SHAPES = [(64, 70), (7,), (4, 8, 12, 12), (4099,)]


def takes(backend: str) -> bool:
    """Whether a backend has 8-bit states; one that has not says so."""
    params = make_params([(64, 64)])
    give_grads(params, 0)
    try:
        NpuFusedAdamW(params, state_dtype="8bit", backend=backend).step()
    except RuntimeError as error:
        assert backend in str(error) and "8bit" in str(error)
        return False
    return True


TAKING = [backend for backend in BACKENDS if takes(backend)]
each_backend = pytest.mark.parametrize("backend", TAKING)


def make(case: Case, params: list[Tensor], **options: Any) -> FusedOptimizer:
    return with_state(case, params, **{"lr": 0.03, "state_dtype": "8bit", **options})


def widened(case: Case, one: FusedOptimizer, options: Options) -> FusedOptimizer:
    """A float32 optimizer with the parameters of another and the numbers its codes stand for."""
    params = [param.detach().clone().requires_grad_() for param in params_of(one)]
    wide = case.make(params, **options)
    wide.load_state_dict(deepcopy(one.state_dict(dtype=torch.float32)))
    return wide


def encoded(one: FusedOptimizer, param: Tensor, name: str, value: Tensor) -> list[Tensor]:
    """What a state must be stored as."""
    form = SIGNED if one.spec.states[name].signed else UNSIGNED
    parts = form.new(param, 0.0)
    form.store(parts, value, None)
    return parts


@each_setting
@pytest.mark.parametrize("backend", ["reference"])
def test_a_step_is_that_of_float32_from_the_decoded_states(
    case: Case, options: Options, backend: str
) -> None:
    """The new states are float32's, encoded; so are the parameters, where the update uses the unrounded states."""
    options = {key: value for key, value in options.items() if key != "state_dtype"}
    params = make_params([(64, 70), (3, 5)])
    one = case.make(params, **options, state_dtype="8bit", backend=backend)
    for step in range(4):
        wide = widened(case, one, {**options, "backend": backend})
        for optimizer in (one, wide):
            train(optimizer, params_of(optimizer), 1, first=step)
        for mine, other in zip(params_of(one), params_of(wide), strict=True):
            if case.kind.spec.finish is None or mine.numel() < 4096:
                assert torch.equal(mine, other)
            for name, value in wide.state.get(other, {}).items():
                if name in case.kind.spec.states and mine.numel() >= 4096:
                    codes, scale = encoded(one, mine, name, value)
                    assert torch.equal(one.state[mine][name], codes), (name, step)
                    assert torch.equal(one.state[mine][name + "_scale"], scale), (name, step)


@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_two_passes_use_the_states_as_stored(name: str) -> None:
    """In both passes: the update that is applied is the one whose norm was taken."""
    params = make_params([(64, 70)])
    one = make(CASES[name], params, lr=0.03, weight_decay=0.0, backend="reference")
    before = params[0].detach().clone()
    train(one, params, 1)
    variant, slots = one.spec.variant(one.param_groups[0]), one.state[params[0]]
    stored = [
        form.load([slots[key], slots[key + "_scale"]], torch.float32)
        for key, form in (("exp_avg", SIGNED), ("exp_avg_sq", UNSIGNED))
    ]
    assert params[0].grad is not None
    cpu = torch.device("cpu")
    numbers = one.spec.numbers(one.param_groups[0], 1, cpu, torch.float32)
    update = variant.direction(before, params[0].grad, stored, numbers)
    change = before - params[0].detach()
    norm = min(float(before.norm()), 10.0)
    rate = 0.03 * norm / float(update.norm()) if name == "lamb" else 0.03 / (1 - 0.9)
    torch.testing.assert_close(change, rate * update, rtol=1e-5, atol=3e-7)


@each_case
@each_backend
def test_every_layout_gives_the_same_codes(case: Case, backend: str) -> None:
    plain = make_params([(64, 70), (4, 8, 12, 12), (70, 64)])
    spread = torch.zeros(128, 140)[::2, ::2]
    laid_out = [
        Parameter(spread.copy_(plain[0].detach())),
        Parameter(plain[1].detach().to(memory_format=torch.channels_last)),
        Parameter(plain[2].detach().t().contiguous().t()),
    ]
    one, two = (make(case, params, backend=backend) for params in (plain, laid_out))
    for step in range(3):
        for params, optimizer in ((plain, one), (laid_out, two)):
            give_grads(params, step)
            optimizer.step()
    exact = case.kind.spec.finish is None  # sums over a tensor run in the order of its memory
    for mine, other in zip(plain, laid_out, strict=True):
        assert other.stride() != mine.stride()
        torch.testing.assert_close(
            mine, other, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
        )
        for name, value in one.state[mine].items():
            if exact and name != "step":
                assert two.state[other][name].is_contiguous()
                assert torch.equal(value, two.state[other][name]), name


@each_case
@each_backend
def test_small_tensors_keep_float32(case: Case, backend: str) -> None:
    params = make_params([(4095,), (4096,), (64, 64), (63, 65)])
    one = make(case, params, backend=backend)
    train(one, params, 1)
    for param in params:
        kept = {name: value for name, value in one.state[param].items() if name != "step"}
        if param.numel() < 4096:
            assert {value.dtype for value in kept.values()} == {torch.float32}
            assert kept.keys() <= case.kind.spec.states.keys()
            continue
        for name, value in kept.items():
            state = case.kind.spec.states.get(name)
            if state is None:
                assert name.removesuffix("_scale") in case.kind.spec.states
                assert value.dtype is torch.float32 and value.shape == (32,)
            else:
                assert value.dtype is (torch.int8 if state.signed else torch.uint8)
                assert value.shape == param.shape


@each_case
@each_backend
def test_parameters_that_are_cast_replaced_or_late(case: Case, backend: str) -> None:
    one, two = (make(case, make_params(SHAPES), backend=backend) for _ in range(2))
    for step in range(6):
        for optimizer in (one, two):
            params = params_of(optimizer)
            give_grads(params, step)
            if step < 2:
                params[2].grad = None  # its first gradient comes late
        if step == 3:  # other memory, another layout: the same numbers
            first, _, third, _ = params_of(two)
            first.data = first.detach().clone().t().contiguous().t()
            third.data = third.detach().clone(memory_format=torch.channels_last)
        if step == 4:
            for optimizer in (one, two):
                last = params_of(optimizer)[3]
                last.grad = None
                last.data = last.detach().bfloat16()
                last.grad = torch.ones_like(last)
        for optimizer in (one, two):
            optimizer.step()
    tolerance = 0 if case.kind.spec.finish is None else 1e-5
    assert_same(tensors_of(two), tensors_of(one), tolerance, tolerance and 1.0)
    assert one.state[params_of(one)[3]][next(iter(case.kind.spec.states))].dtype in (
        torch.int8,
        torch.uint8,
    )


@each_case
def test_a_step_that_fails_changes_nothing(case: Case) -> None:
    name = next(iter(case.kind.spec.states))
    for spoil, message in (
        (lambda slots: slots.update({name: slots[name][:-1]}), r"is \(63, 70\)"),
        (lambda slots: slots.pop(name + "_scale"), "scales are NoneType|int8"),
        (
            lambda slots: slots.update({name + "_scale": torch.ones(3)}),
            r"scales are \(3,\), not \(35,\)",
        ),
        (
            lambda slots: slots.update({name + "_scale": torch.ones(35).double()}),
            "scales of torch.float64",
        ),
        (lambda slots: slots.update({name: slots[name].int()}), "of torch.int32"),
    ):
        params = make_params(SHAPES)
        one = make(case, params)
        train(one, params, 2)
        spoil(one.state[params[0]])
        give_grads(params, 2)
        before = picture(one)
        with pytest.raises(RuntimeError, match=message):
            one.step()
        assert_unchanged(one, before)
    params = make_params(SHAPES)
    one = make(case, params)
    train(one, params, 2)
    params[0].data = torch.zeros(65, 70)
    give_grads(params, 2)
    before = picture(one)
    with pytest.raises(RuntimeError, match=r"shape \(65, 70\), but its state .* is \(64, 70\)"):
        one.step()
    assert_unchanged(one, before)


@each_case
@each_backend
def test_an_overflow_leaves_no_trace(case: Case, backend: str) -> None:
    scaled, plain = (make(case, make_params(SHAPES), backend=backend) for _ in range(2))
    scaler = GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        amp_step(scaled, scaler, step, overflow=step in (0, 3))
        if step not in (0, 3):
            train(plain, params_of(plain), 1, first=step)
    assert_same(tensors_of(scaled), tensors_of(plain))


@each_case
@each_backend
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_what_is_not_finite_poisons_its_block_and_no_other(
    case: Case, backend: str, bad: float
) -> None:
    if case.kind.spec.finish is not None or case.kind.spec.name == "bert_adam":
        pytest.skip("a norm over all elements carries it further, in float32 as well")
    params = make_params([(64, 70)])
    one = make(case, params, backend=backend)
    train(one, params, 1)
    give_grads(params, 1)
    assert params[0].grad is not None
    params[0].grad.view(-1)[5 * BLOCK + 7] = bad
    one.step()
    train(one, params, 2, first=2)
    finite = params[0].detach().isfinite().view(-1, BLOCK)
    assert not finite[5].any() or not math.isnan(bad)
    assert finite[:5].all() and finite[6:].all()
    scales = [value for name, value in one.state[params[0]].items() if name.endswith("_scale")]
    assert all(scale.isfinite().tolist() == [i != 5 for i in range(35)] for scale in scales)


@each_case
@each_backend
def test_stochastic_rounding_is_a_function_of_seed_and_step(case: Case, backend: str) -> None:
    def run(**options: Any) -> FusedOptimizer:
        params = make_params(SHAPES)
        one = make(case, params, backend=backend, rounding="stochastic", **options)
        train(one, params, 3)
        return one

    one, again, other = run(), run(), run(rounding_seed=1)
    assert_same(tensors_of(one), tensors_of(again))
    name = next(iter(case.kind.spec.states))
    slots = [each.state[params_of(each)[0]] for each in (one, other)]
    assert not torch.equal(slots[0][name], slots[1][name])
