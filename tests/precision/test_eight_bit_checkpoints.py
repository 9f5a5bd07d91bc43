"""8-bit states are saved and loaded bit for bit, become float32 and come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from eight_bit_training import TORCH, go_on, through_float32, trained, twin
from torch import Tensor

from cases import CASES, Case, each_case
from ingot.storage.blockwise8 import SIGNED, UNSIGNED
from training import assert_same, params_of, tensors_of, through_a_file, train

each_rounding = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


@each_case
@each_rounding
def test_a_file_keeps_every_bit(case: Case, rounding: str) -> None:
    one = trained(case, rounding=rounding)
    two = twin(case, one, rounding=rounding)
    two.load_state_dict(through_a_file(one.state_dict()))
    assert_same(tensors_of(two), tensors_of(one))
    assert {torch.int8, torch.uint8} & {t.dtype for t in tensors_of(two).values()}
    assert all(
        type(value) is Tensor
        for value in two.state[params_of(two)[0]].values()
        if isinstance(value, Tensor)
    )
    go_on(one, two)
    assert_same(tensors_of(two), tensors_of(one))


@each_case
@each_rounding
def test_training_goes_on_from_float32_with_the_same_numbers(case: Case, rounding: str) -> None:
    """Codes come back exactly; a scale may come back a rounding apart where no code shows the difference."""
    one = trained(case, rounding=rounding)
    two = twin(case, one, rounding=rounding)
    two.load_state_dict(through_float32(one))
    go_on(one, two)
    for mine, other in zip(params_of(one), params_of(two), strict=True):
        assert torch.equal(mine, other)


@each_case
@pytest.mark.parametrize("copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_with_the_same_numbers(case: Case, copied: Callable[[Any], Any]) -> None:
    one = trained(case)
    two = copied(one)
    assert_same(tensors_of(two), tensors_of(one))
    go_on(one, two)
    assert_same(tensors_of(two), tensors_of(one))


def test_a_state_dict_can_be_copied_and_printed() -> None:
    saved = trained(CASES["adamw"]).state_dict()
    codes, copied = (each["state"][0]["exp_avg"] for each in (saved, deepcopy(saved)))
    assert torch.equal(codes, copied) and codes.data_ptr() != copied.data_ptr()
    assert type(copied) is type(codes) and "int8" in repr(copied)


@each_case
def test_float32_states_are_what_the_codes_stand_for(case: Case) -> None:
    one = trained(case)
    saved = one.state_dict(dtype=torch.float32)
    for number, param in enumerate(params_of(one)):
        slots = one.state[param]
        for name, state in case.kind.spec.states.items():
            if name + "_scale" in slots:
                form = SIGNED if state.signed else UNSIGNED
                value = form.load([slots[name], slots[name + "_scale"]], torch.float32)
                assert torch.equal(saved["state"][number][name], value)
        assert not [key for key in saved["state"][number] if key.endswith("_scale")]
    two = twin(case, one, state_dtype=None)
    two.load_state_dict(one.state_dict())  # decoded as it is loaded
    three = twin(case, one, state_dtype=None)
    three.load_state_dict(through_a_file(saved))
    assert_same(tensors_of(two), tensors_of(three))
    go_on(two, three)
    assert_same(tensors_of(two), tensors_of(three))


@each_case
def test_a_float32_checkpoint_is_encoded(case: Case) -> None:
    one = trained(case, state_dtype=None)
    two = twin(case, one)
    two.load_state_dict(through_a_file(one.state_dict()))
    for mine, other in zip(params_of(one), params_of(two), strict=True):
        for name, state in case.kind.spec.states.items():
            if name in one.state[mine] and mine.numel() >= 4096:
                form = SIGNED if state.signed else UNSIGNED
                parts = form.new(mine, 0.0)
                form.store(parts, one.state[mine][name], None)
                assert torch.equal(two.state[other][name], parts[0])
                assert torch.equal(two.state[other][name + "_scale"], parts[1])
    go_on(two)


def test_narrow_states_become_float32() -> None:
    case = CASES["adamw"]
    one = trained(case, state_dtype=torch.bfloat16)
    saved = one.state_dict(dtype=torch.float32)["state"][0]["exp_avg"]
    assert saved.dtype is torch.float32 and torch.equal(
        saved, one.state[params_of(one)[0]]["exp_avg"].float()
    )
    with pytest.raises(
        ValueError, match=r"dtype must be None, 'kept' or torch\.float32, got torch\.float16"
    ):
        one.state_dict(dtype=torch.float16)


@pytest.mark.parametrize("name", TORCH)
def test_torch_optim_goes_on_from_float32_and_back(name: str) -> None:
    case = CASES[name]
    one = trained(case)
    params = [p.detach().clone().requires_grad_() for p in params_of(one)]
    assert case.torch_kind is not None
    options = {"momentum": 0.9} if name == "sgd" else {}
    theirs = case.torch_kind(params, lr=0.03, **options)
    theirs.load_state_dict(through_float32(one))
    ours = twin(case, one, state_dtype=None)
    ours.load_state_dict(through_float32(one))
    go_on(theirs, ours)
    for mine, other in zip(params_of(ours), params, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    one.load_state_dict(through_a_file(theirs.state_dict()))
    train(one, params_of(one), 1, first=6)
    assert one.state[params_of(one)[0]][next(iter(case.kind.spec.states))].dtype in (
        torch.int8,
        torch.uint8,
    )


def test_what_was_kept_wide_is_encoded_by_the_next_step() -> None:
    """ZeroRedundancyOptimizer puts what it loads straight into the states."""
    case = CASES["adamw"]
    one = trained(case, state_dtype=None)
    two, three = twin(case, one), twin(case, one)
    two.load_state_dict(one.state_dict())
    for mine, other in zip(params_of(one), params_of(three), strict=True):
        three.state[other] = deepcopy(one.state[mine])
    go_on(two, three)
    assert_same(tensors_of(three), tensors_of(two))
