"""Arguments that are nothing of what a call takes: one sentence each, and nothing is changed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import ingot
from training import assert_unchanged, make_params, picture, small_model, train


@pytest.mark.parametrize("option", ["params", "defaults"])
def test_arguments_of_a_class_are_no_options(option: str) -> None:
    model = small_model()
    with pytest.raises(TypeError, match=f"AdamW has no option '{option}'; its options are lr, "):
        ingot.create_optimizer(model, "adamw", **{option: {}})


@pytest.mark.parametrize("value", [5, None, [5], {"*.bias": 5}.values(), b"x"])
def test_patterns_that_are_none(value: Any) -> None:
    with pytest.raises(TypeError, match=r"param_groups: no_decay must be .*patterns.*, got "):
        ingot.param_groups(small_model(), 0.1, no_decay=value)


@pytest.mark.parametrize("layers", [5, "encoder", lambda name: True, lambda name: 1.0])
def test_layers_that_are_none(layers: Any) -> None:
    with pytest.raises(
        ValueError if callable(layers) else TypeError, match=r"param_groups: layers.* must be "
    ):
        ingot.param_groups(small_model(), 0.1, 0.5, lr=0.1, layers=layers)


CALLS = [
    ((5,), {}, "closure must be None or a function that returns the loss, got 5"),
    ((), {"closure": "x"}, "closure must be None or a function that returns the loss, got 'x'"),
    ((), {"foo": 1}, "there is no argument foo; it takes closure and grad_scaler"),
    ((None, None), {}, "it takes closure alone by position, got 2 arguments"),
    ((None,), {"closure": None}, "closure is given twice"),
    ((), {"grad_scaler": 5}, "grad_scaler must be None or an enabled torch.amp.GradScaler, got 5"),
    (
        (),
        {"grad_scaler": torch.amp.GradScaler("cpu", enabled=False)},
        "grad_scaler must be None or an enabled",
    ),
]


@pytest.mark.parametrize("steps", [0, 4], ids=["first", "quick"])
@pytest.mark.parametrize(("call", "named", "message"), CALLS)
def test_arguments_of_a_step(
    call: tuple[Any, ...], named: dict[str, Any], message: str, steps: int
) -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    train(optimizer, params, steps)
    params[0].grad = torch.ones(4, 3)
    before = picture(optimizer)
    with pytest.raises(TypeError, match=rf"^NpuFusedAdamW\.step: {message}"):
        optimizer.step(*call, **named)
    assert_unchanged(optimizer, before)
    assert "found_inf" not in vars(optimizer)


def test_arguments_that_a_hook_puts_in_place_of_others() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    params[0].grad = torch.ones(4, 3)
    optimizer.register_step_pre_hook(lambda optimizer, call, named: ((optimizer,), {"closure": 7}))
    with pytest.raises(TypeError, match=r"closure must be None or a function .*, got 7"):
        optimizer.step()
    optimizer.register_step_pre_hook(lambda optimizer, call, named: ((optimizer, lambda: 3.5), {}))
    assert optimizer.step() == 3.5


NORMS = [
    ("max_norm", "x", "a number >= 0"),
    ("max_norm", None, "a number >= 0"),
    ("max_norm", math.nan, "a number >= 0"),
    ("max_norm", -1, "a number >= 0"),
    ("max_norm", True, "a number >= 0"),
    ("norm_type", "y", "a number > 0"),
    ("norm_type", math.nan, "a number > 0"),
    ("norm_type", -2, "a number > 0"),
]


@pytest.mark.parametrize(("option", "value", "allowed"), NORMS)
def test_norms_to_clip_by(option: str, value: Any, allowed: str) -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    params[0].grad = torch.ones(4, 3)
    with pytest.raises(ValueError, match=f"AdamW: {option} must be {allowed}"):
        optimizer.clip_grad_norm_fused_(**{"max_norm": 1.0, option: value})
    assert torch.equal(params[0].grad, torch.ones(4, 3))


def test_norms_may_be_tensors_and_the_names_of_infinity() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    params[0].grad = torch.full((4, 3), 8.0)
    assert optimizer.clip_grad_norm_fused_(torch.tensor(2), "inf") == 8.0  # type: ignore[arg-type]
    assert params[0].grad[0, 0] == pytest.approx(2.0)
