"""Training with stochastic rounding: what the seed decides, what a resume keeps, and what is not rounded by chance."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from stochastic import SHAPES, STOCHASTIC

from cases import CASES, Case, each_backend, each_case
from ingot.storage.rounding import Rounding, random_bits
from training import assert_same, give_grads, make_params, set_grad, tensors_of, train


@each_case
@each_backend
def test_a_seed_is_reproducible_and_matters(case: Case, backend: str) -> None:
    results = []
    lr = 5.0 if case.name == "adadelta" else 0.05  # it scales updates that are small at first
    for seed in (1, 1, 2):
        torch.manual_seed(seed * 77 + len(results))  # torch's own generator has no say
        params = make_params(SHAPES, torch.bfloat16)
        optimizer = case.make(
            params, lr=lr, backend=backend, rounding="stochastic", rounding_seed=seed
        )
        before = torch.get_rng_state()
        train(optimizer, params, 2)
        assert torch.equal(before, torch.get_rng_state())
        results.append(torch.cat([param.detach().flatten() for param in params]))
    assert torch.equal(results[0], results[1])
    share = float((results[0] != results[2]).float().mean())
    assert share > 0.2


@each_case
@each_backend
@pytest.mark.parametrize("state", [None, "param", torch.float16], ids=str)
def test_resumes_bit_for_bit(case: Case, backend: str, state: Any) -> None:
    """The seed comes from the checkpoint, as every other option of a group does."""
    options = {"lr": 0.05, "backend": backend, "state_dtype": state, **STOCHASTIC}
    params = make_params(SHAPES, torch.bfloat16)
    straight = case.make(params, **options)
    train(straight, params, 3)
    saved = deepcopy(straight.state_dict()), [param.detach().clone() for param in params]
    train(straight, params, 3, first=3)

    again = [param.requires_grad_() for param in saved[1]]
    resumed = case.make(again, **{**options, "rounding_seed": 999})
    resumed.load_state_dict(saved[0])
    assert resumed.param_groups[0]["rounding_seed"] == 11
    train(resumed, again, 3, first=3)
    assert_same(tensors_of(resumed), tensors_of(straight))


@each_case
@each_backend
def test_with_masters_only_16_bit_states_are_rounded_by_chance(case: Case, backend: str) -> None:
    params = make_params(SHAPES, torch.bfloat16)
    optimizer = case.make(params, lr=0.05, backend=backend, master_weights=True, **STOCHASTIC)
    nearest = case.make(
        make_params(SHAPES, torch.bfloat16), lr=0.05, backend=backend, master_weights=True
    )
    for each in (optimizer, nearest):
        train(each, each.param_groups[0]["params"], 3)
    assert_same(tensors_of(optimizer), tensors_of(nearest))


@each_case
@each_backend
def test_harmless_where_nothing_has_16_bits(case: Case, backend: str) -> None:
    """Models mix types: the option applies to what it can, and float32 stays as it was."""
    results = []
    for options in (STOCHASTIC, {}):
        params = make_params(SHAPES)
        optimizer = case.make(params, lr=0.05, backend=backend, **options)
        train(optimizer, params, 3)
        results.append(tensors_of(optimizer))
    assert_same(results[0], results[1])


@each_backend
def test_small_steps_are_not_lost(backend: str) -> None:
    """1000 steps of 1/1000 of a unit in the last place: to nearest nothing ever moves, here the mean does.

    The sum of 1000 independent steps over 4096 elements: mean 1 unit, deviation sqrt(1/4096) units.
    """
    unit = 2.0**-7
    moved = {}
    for rounding in ("nearest", "stochastic"):
        param = torch.ones(4096, dtype=torch.bfloat16, requires_grad=True)
        optimizer = CASES["sgd"].make([param], lr=1.0, backend=backend, rounding=rounding)
        set_grad(param, torch.full((4096,), -unit / 1000))
        for _ in range(1000):
            optimizer.step()
        moved[rounding] = float((param.detach().double() - 1).mean()) / unit
    assert moved["nearest"] == 0
    assert abs(moved["stochastic"] - 1) < 5 / 64


def test_the_key_moves_with_the_first_index() -> None:
    """A shard that starts at row-major index 12 gets the bits of elements 12, 13, ... of the whole."""
    whole, shard = Rounding(5, 1, 2, [3], [0]), Rounding(5, 1, 2, [3], [12])
    for one, two in zip(whole.keys, shard.keys, strict=True):
        bits = random_bits(torch.arange(40), one[0])
        assert torch.equal(bits[12:], random_bits(torch.arange(28), two[0]))


def test_sgd_counts_steps_only_for_stochastic_rounding() -> None:
    """torch.optim.SGD has no counter in its checkpoints, and ours has none unless it must."""
    kinds = {"plain": {}, "stochastic": STOCHASTIC}
    states = {}
    for name, options in kinds.items():
        params = make_params([(5,)], torch.bfloat16)
        optimizer = CASES["sgd"].make(params, lr=0.1, momentum=0.9, **options)
        train(optimizer, params, 3)
        states[name] = optimizer.state_dict()
    assert set(states["plain"]["state"][0]) == {"momentum_buffer"}
    assert float(states["stochastic"]["state"][0]["step"]) == 3
    # Between the two, and to torch.optim: loads, and a counter nobody keeps up is dropped.
    [param] = make_params([(5,)], torch.bfloat16)
    plain = CASES["sgd"].make([param], lr=0.1, momentum=0.9)
    plain.load_state_dict(states["stochastic"])
    assert set(plain.state[param]) == {"momentum_buffer"}
    stochastic = CASES["sgd"].make([param], lr=0.1, momentum=0.9, **STOCHASTIC)
    stochastic.load_state_dict(states["plain"])
    give_grads([param], 0)
    stochastic.step()
    assert stochastic.state[param]["step"] == 1
    theirs = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    theirs.load_state_dict(states["stochastic"])
    theirs.step()
