"""Checkpoints keep the types of states; what happens between optimizers of different precision is defined."""

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from scaling import PRECISIONS
from torch import Tensor

from cases import CASES, Case, each_backend, each_case
from ingot.optimizer import FusedOptimizer
from training import assert_same, give_grads, make_params, tensors_of, through_a_file, train

SHAPES = [(7,), (4, 3), (), (33, 5)]
each_precision = pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
each_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
OPTIONS = {"sgd": {"momentum": 0.9}}


def trained(case: Case, dtype: torch.dtype, steps: int = 3, **options: Any) -> FusedOptimizer:
    optimizer = make(case, make_params(SHAPES, dtype), **options)
    train(optimizer, optimizer.param_groups[0]["params"], steps)
    return optimizer


def make(case: Case, params: list[Tensor], **options: Any) -> FusedOptimizer:
    return case.make(params, lr=0.03, **OPTIONS.get(case.name, {}), **options)


def copies(optimizer: FusedOptimizer) -> list[Tensor]:
    params = optimizer.param_groups[0]["params"]
    return [param.detach().clone().requires_grad_() for param in params]


@each_case
@each_backend
@each_half
@each_precision
def test_save_and_load_keeps_every_bit(
    case: Case, backend: str, dtype: torch.dtype, precision: dict[str, Any]
) -> None:
    one = trained(case, dtype, backend=backend, **precision)
    two = make(case, copies(one), backend=backend, **precision)
    two.load_state_dict(through_a_file(one.state_dict()))
    assert_same(tensors_of(two), tensors_of(one))
    for optimizer in (one, two):
        train(optimizer, optimizer.param_groups[0]["params"], 2, first=3)
    assert_same(tensors_of(two), tensors_of(one))


@each_case
@each_precision
@pytest.mark.parametrize("copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_with_the_same_numbers(
    case: Case, precision: dict[str, Any], copied: Any
) -> None:
    one = trained(case, torch.bfloat16, **precision)
    two = copied(one)
    for optimizer in (one, two):
        train(optimizer, optimizer.param_groups[0]["params"], 2, first=3)
    assert_same(tensors_of(two), tensors_of(one))


@each_case
@each_half
def test_masters_into_an_optimizer_without(case: Case, dtype: torch.dtype) -> None:
    """It goes on from the parameters; the extra bits of the masters are dropped."""
    one = trained(case, dtype, master_weights=True)
    two = make(case, copies(one))
    two.load_state_dict(one.state_dict())
    assert all("master_param" not in slots for slots in two.state.values())
    assert all("master_param" in slots for slots in one.state.values())
    expected = make(case, copies(one))
    for param, source in zip(
        expected.param_groups[0]["params"], one.param_groups[0]["params"], strict=True
    ):
        kept = {k: v for k, v in one.state[source].items() if k != "master_param"}
        expected.state[param] = deepcopy(kept)
    for optimizer in (two, expected):
        train(optimizer, optimizer.param_groups[0]["params"], 2, first=3)
    assert_same(tensors_of(two), tensors_of(expected))


@each_case
@each_half
def test_no_masters_into_an_optimizer_with(case: Case, dtype: torch.dtype) -> None:
    """The first step makes them from the parameters as they are then."""
    one = trained(case, dtype)
    params = copies(one)
    two = make(case, params, master_weights=True)
    two.load_state_dict(one.state_dict())
    assert all("master_param" not in slots for slots in two.state.values())
    wide = [param.detach().float().requires_grad_() for param in params]
    twin = make(case, wide)
    twin.load_state_dict(one.state_dict())
    for step in (3, 4):
        give_grads(params, step)
        for param, other in zip(params, wide, strict=True):
            other.grad = param.grad.float()
        two.step()
        twin.step()
    for param, other in zip(params, wide, strict=True):
        assert torch.equal(two.state[param]["master_param"], other)


def test_masters_for_parameters_that_came_from_elsewhere() -> None:
    """The optimizer's checkpoint is loaded, other weights are in the model: the weights win."""
    case = CASES["adamw"]
    one = trained(case, torch.bfloat16, master_weights=True)
    params = make_params(SHAPES, torch.bfloat16, seed=9)
    two = make(case, params, master_weights=True)
    two.load_state_dict(one.state_dict())
    start = [param.detach().float() for param in params]
    give_grads(params, 3)
    two.step()
    for param, before in zip(params, start, strict=True):
        assert torch.all((two.state[param]["master_param"] - before).abs() < 0.04)  # lr 0.03


@each_case
@pytest.mark.parametrize("saved", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", [None, "param", torch.float16], ids=str)
def test_states_take_the_type_of_the_optimizer(case: Case, saved: Any, wanted: Any) -> None:
    """Rounded to nearest on loading where the new type is narrower; kept to the bit where it is wider."""
    one = trained(case, torch.bfloat16, state_dtype=saved)
    two = make(case, copies(one), state_dtype=wanted)
    two.load_state_dict(one.state_dict())
    dtype = {None: torch.float32, "param": torch.bfloat16}.get(wanted, wanted)
    for param, source in zip(
        two.param_groups[0]["params"], one.param_groups[0]["params"], strict=True
    ):
        for name in case.kind.spec.states.keys() & one.state[source].keys():
            expected = one.state[source][name].to(dtype)
            torch.testing.assert_close(two.state[param][name], expected, rtol=0, atol=0)
            assert two.state[param][name].dtype is dtype


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@each_half
def test_a_16_bit_checkpoint_of_torch_loads(name: str, dtype: torch.dtype) -> None:
    """Torch keeps 16-bit states for 16-bit parameters; here they become float32 without loss."""
    case = CASES[name]
    assert case.torch_kind is not None
    params = make_params(SHAPES, dtype)
    theirs = case.torch_kind(params, lr=0.03, **OPTIONS.get(name, {}))
    train(theirs, params, 2)
    ours = make(case, [param.detach().clone().requires_grad_() for param in params])
    ours.load_state_dict(theirs.state_dict())
    for param, source in zip(ours.param_groups[0]["params"], params, strict=True):
        for state in case.kind.spec.states.keys() & theirs.state[source].keys():
            value = theirs.state[source][state]
            assert value.dtype is dtype and ours.state[param][state].dtype is torch.float32
            assert torch.equal(ours.state[param][state], value.float())
    train(ours, ours.param_groups[0]["params"], 1, first=2)


@each_half
def test_our_16_bit_checkpoint_loads_into_torch(dtype: torch.dtype) -> None:
    """Torch casts the float32 states to the parameter's type, as it does with its own."""
    ours = trained(CASES["adamw"], dtype, master_weights=True)
    params = copies(ours)
    theirs = torch.optim.AdamW(params, lr=0.03)
    theirs.load_state_dict(ours.state_dict())
    for param, source in zip(params, ours.param_groups[0]["params"], strict=True):
        assert torch.equal(theirs.state[param]["exp_avg"], ours.state[source]["exp_avg"].to(dtype))
    train(theirs, params, 1, first=3)
