"""What every step promises also holds with 8-bit states: the formula, any layout, small tensors, one seed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from eight_bit_backends import SHAPES, each_backend, make
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case, each_setting
from ingot.optimizer import FusedOptimizer
from ingot.storage.blockwise8 import SIGNED, UNSIGNED
from training import assert_same, give_grads, make_params, params_of, tensors_of, train


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
