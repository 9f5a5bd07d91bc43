"""What a user has put into ``optimizer.state`` while it trains: refused with a sentence, or left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import ingot
from training import give_grads, make_params, train

COUNTS = [None, "x", math.nan, math.inf, torch.ones(2), -1, 10**400, 1.5, True, {}]


def trained(steps: int, **options: Any) -> tuple[list[Parameter], ingot.optimizer.FusedOptimizer]:
    """After one step the next is planned anew, after four it may take the quick path."""
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params, **options)
    train(optimizer, params, steps)
    give_grads(params, 9)
    return params, optimizer


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("value", COUNTS, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("everywhere", [False, True], ids=["one", "all"])
def test_step_counts_that_are_none(value: object, steps: int, everywhere: bool) -> None:
    params, optimizer = trained(steps)
    for param in params if everywhere else params[1:]:
        optimizer.state[param]["step"] = value
    weights = [param.detach().clone() for param in params]
    number = 0 if everywhere else 1
    with pytest.raises(
        ValueError,
        match=rf"AdamW: parameter {number} of group 0: step must be a whole number from 0 to 2\*\*53, "
        "the state has",
    ):
        optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(weights, params, strict=True))
    assert optimizer.state[params[1]]["step"] is value


def test_step_counts_that_float64_does_not_have() -> None:
    """Checkpoints could not save them. The quick path goes on from one that all parameters have: it is exact there."""
    params, optimizer = trained(1)
    optimizer.state[params[0]]["step"] = 2**53 + 1
    with pytest.raises(ValueError, match=r"step must be a whole number .* an integer of 54 bits"):
        optimizer.step()
    optimizer.state[params[0]]["step"] = 2**53
    optimizer.step()


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("value", [7, 7.0, torch.tensor(7), torch.tensor(7.0, dtype=torch.float64)])
def test_whole_numbers_of_any_kind_are_step_counts(value: object, steps: int) -> None:
    params, optimizer = trained(steps)
    optimizer.state[params[0]]["step"] = value
    optimizer.step()
    assert [optimizer.state[param]["step"] for param in params] == [8, steps + 1]


STATES = {
    "complex64": lambda old: old.to(torch.complex64),
    "meta": lambda old: old.to("meta"),
    "sparse": lambda old: old.to_sparse(),
}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("dtype", [None, "8bit"])
def test_states_that_hold_no_numbers_of_the_parameter(
    kind: str, dtype: str | None, steps: int
) -> None:
    params, optimizer = trained(steps, state_dtype=dtype)
    if dtype == "8bit":
        params = make_params([(64, 64)])
        optimizer = ingot.AdamW(params, state_dtype=dtype)
        train(optimizer, params, steps)
        give_grads(params, 9)
    slots = optimizer.state[params[0]]
    slots["exp_avg"] = STATES[kind](slots["exp_avg"])
    weights = [param.detach().clone() for param in params]
    with pytest.raises(
        RuntimeError, match=f"AdamW: parameter 0 of group 0: .* its state exp_avg is .*{kind}"
    ):
        optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(weights, params, strict=True))


def test_scales_without_values() -> None:
    params = make_params([(64, 64)])
    optimizer = ingot.AdamW(params, state_dtype="8bit")
    train(optimizer, params, 1)
    slots = optimizer.state[params[0]]
    slots["exp_avg_scale"] = slots["exp_avg_scale"].to("meta")
    give_grads(params, 9)
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 0: .* state exp_avg is .*meta"):
        optimizer.step()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_state_that_is_no_dictionary(steps: int) -> None:
    params, optimizer = trained(steps)
    optimizer.state[params[0]] = 5  # type: ignore[assignment]
    with pytest.raises(
        RuntimeError, match=r"parameter 0 of group 0: its state must be a dictionary, not 5"
    ):
        optimizer.step()


@pytest.mark.parametrize("mine", [5, {"step": "epoch 3"}, {"step": 70, "seen": torch.ones(9)}])
def test_entries_of_the_users_own_are_left_alone(mine: object) -> None:
    params, optimizer = trained(2)
    size = optimizer.state_bytes()
    optimizer.state["mine"] = mine  # type: ignore[index]
    assert optimizer.state_bytes() == size
    seen: list[int] = []
    optimizer.track_metrics(1, lambda metrics: seen.append(metrics.step))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    give_grads(params, 10)
    optimizer.step()
    assert seen == [3, 4]


def test_metrics_are_not_counted_from_what_is_no_count() -> None:
    params, optimizer = trained(2)
    optimizer.state[params[1]]["step"] = "x"
    with pytest.raises(ValueError, match=r"track_metrics: .*parameter 1: step must be a whole"):
        optimizer.track_metrics(1)
    with pytest.raises(RuntimeError, match="call track_metrics"):
        optimizer.metrics()


def test_a_real_state_of_a_complex_parameter_is_taken() -> None:
    """Nothing is lost: it is what a parameter that has become complex has."""
    param = Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = ingot.AdamW([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    slots = optimizer.state[param]
    old: Tensor = slots["exp_avg"]
    slots["exp_avg"] = old.real.clone()
    optimizer.step()
    assert slots["exp_avg"].is_complex()
