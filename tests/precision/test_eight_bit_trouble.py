"""8-bit states when something comes between: parameters that change, failures, overflows, what is not finite."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from eight_bit_backends import SHAPES, each_backend, make
from eight_bit_training import trained, twin
from scaling import amp_step
from torch.amp import GradScaler

from cases import CASES, Case, each_case
from ingot.storage.blockwise8 import BLOCK
from training import (
    assert_same,
    assert_unchanged,
    give_grads,
    make_params,
    params_of,
    picture,
    tensors_of,
    through_a_file,
    train,
)


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


def test_poisoned_states_are_saved_and_come_back_as_numbers() -> None:
    """Nobody loses a run to a NaN: all can be saved, and what the codes stood for loads, NaN in its block alone.

    Codes with a scale of NaN load nowhere: from a file they could as well be damage.
    """
    case = CASES["adamw"]
    one = trained(case)
    params = params_of(one)
    give_grads(params, 3)
    assert params[0].grad is not None
    params[0].grad.view(-1)[5 * BLOCK + 7] = math.nan
    one.step()
    codes = through_a_file(one.state_dict())
    poisoned = codes["state"][0]["exp_avg_scale"].isnan()
    assert poisoned.nonzero().tolist() == [[5]]
    numbers = through_a_file(one.state_dict(dtype=torch.float32))
    finite = numbers["state"][0]["exp_avg"].isfinite().view(-1, BLOCK)
    assert torch.equal(finite, ~poisoned[:, None].expand(-1, BLOCK))
    for state_dtype in ("8bit", None):
        two = twin(case, one, state_dtype=state_dtype)
        before = picture(two)
        with pytest.raises(ValueError, match="scale of a block is negative, infinite or NaN"):
            two.load_state_dict(codes)
        assert_unchanged(two, before)
        two.load_state_dict(numbers)
        exported = through_a_file(two.state_dict(dtype=torch.float32))
        for name, value in numbers["state"][0].items():
            torch.testing.assert_close(
                exported["state"][0][name], value, rtol=0, atol=0, equal_nan=True
            )
    assert_same(tensors_of(deepcopy(one)), tensors_of(one))
