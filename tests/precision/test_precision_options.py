"""Precision options that are wrong, cannot be honoured, or stand in the wrong place."""

import re
from typing import Any

import pytest
import torch

from cases import CASES, Case, each_backend, each_case
from training import assert_unchanged, give_grads, make_params, picture, train

BAD: list[tuple[str, Any, str]] = [
    ("state_dtype", torch.float64, "one of None, 'param', torch.float32"),
    ("state_dtype", "bfloat16", "one of None, 'param'"),
    ("state_dtype", torch.int16, "one of"),
    ("state_dtype", 16, "one of"),
    ("master_weights", "yes", "True or False"),
    ("master_weights", None, "True or False"),
    ("rounding", "up", "'nearest' or 'stochastic'"),
    ("rounding", None, "'nearest' or 'stochastic'"),
    ("rounding_seed", -1, "an integer >= 0 and < 2\\*\\*64"),
    ("rounding_seed", 1 << 64, "an integer"),
    ("rounding_seed", 0.5, "an integer"),
    ("rounding_seed", True, "an integer"),
]
SET = {"state_dtype": torch.bfloat16, "master_weights": True, "rounding": "stochastic"}


@each_case
@pytest.mark.parametrize(("option", "value", "allowed"), BAD)
def test_a_wrong_value_is_named(case: Case, option: str, value: Any, allowed: str) -> None:
    message = f"{re.escape(repr(value))} .*{case.kind.__name__}: {option} must be {allowed}"
    with pytest.raises(ValueError, match=message):
        case.make(make_params([(3,)]), **{option: value})


@each_case
@pytest.mark.parametrize("option", SET)
def test_options_of_the_whole_optimizer_do_not_go_into_a_group(case: Case, option: str) -> None:
    """Ignoring them there would be silent."""
    message = f"{case.kind.__name__}: {option} must be given for the whole optimizer"
    with pytest.raises(ValueError, match=message):
        case.make([{"params": make_params([(3,)]), option: SET[option]}])
    optimizer = case.make(make_params([(3,)]))
    before = picture(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": make_params([(3,)]), option: SET[option]})
    assert_unchanged(optimizer, before)


def test_a_seed_may_differ_between_groups() -> None:
    groups = [make_params([(999,)], torch.bfloat16) for _ in range(2)]
    optimizer = CASES["sgd"].make(
        [{"params": groups[0]}, {"params": groups[1], "rounding_seed": 5}],
        lr=0.1,
        rounding="stochastic",
    )
    assert [group["rounding_seed"] for group in optimizer.param_groups] == [0, 5]
    with pytest.raises(ValueError, match="rounding_seed must be"):
        optimizer.add_param_group({"params": make_params([(3,)]), "rounding_seed": -5})


@each_case
@pytest.mark.parametrize(
    ("param", "state"),
    [
        (torch.float64, torch.bfloat16),
        (torch.float64, torch.float32),
        (torch.complex64, torch.float16),
        (torch.complex128, torch.float32),
    ],
)
def test_states_that_a_parameter_cannot_have(
    case: Case, param: torch.dtype, state: torch.dtype
) -> None:
    """Refused at once, in a later group, and in a step if the parameter changed its type since."""
    message = f"state_dtype={state} cannot be kept for a {param} parameter; allowed there are None and 'param'"
    with pytest.raises(ValueError, match=message):
        case.make(make_params([(3,)], param), state_dtype=state)
    first = make_params([(3,)])
    options = {"momentum": 0.9} if case.name == "sgd" else {}  # or it has no states
    optimizer = case.make(first, state_dtype=state, **options)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": make_params([(3,)], param)})
    assert len(optimizer.param_groups) == 1
    train(optimizer, first, 1)
    first[0].data = first[0].data.to(param)
    give_grads(first, 0)
    before = picture(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert_unchanged(optimizer, before)


@each_case
@each_backend
def test_float32_states_of_complex_parameters_are_complex(case: Case, backend: str) -> None:
    """complex64 is a pair of float32: the option is honoured as it stands."""
    params = make_params([(4, 3)], torch.complex64)
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    optimizer = case.make(params, backend=backend, state_dtype=torch.float32, **options)
    train(optimizer, params, 2)
    states = [v for k, v in optimizer.state[params[0]].items() if k != "step"]
    assert states and all(state.dtype is torch.complex64 for state in states)


@each_case
@each_backend
def test_types_may_be_mixed_in_one_model(case: Case, backend: str) -> None:
    """Normalisation layers stay in float32 while the rest is in 16 bits: each gets what it can have."""
    types = [torch.float32, torch.bfloat16, torch.float16]
    params = [make_params([(4, 3)], dtype)[0] for dtype in types]
    optimizer = case.make(params, backend=backend, lr=0.01, **SET)
    train(optimizer, params, 2)
    assert ["master_param" in optimizer.state[param] for param in params] == [False, True, True]
    assert all(param.isfinite().all() for param in params)
