"""Nobody takes the codes of 8-bit states for numbers: torch.optim, damaged checkpoints, a float32 optimizer."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from eight_bit_training import SHAPES, TORCH, trained, twin
from torch import Tensor

from cases import CASES
from training import assert_unchanged, make_params, params_of, picture, through_a_file, train


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("how", ["foreach", "fused", "for loop"])
@pytest.mark.parametrize(
    "saved", [through_a_file, deepcopy, lambda x: x], ids=["file", "copy", "direct"]
)
def test_torch_optim_refuses_codes(name: str, how: str, saved: Callable[[Any], Any]) -> None:
    case = CASES[name]
    assert case.torch_kind is not None
    if how == "fused" and name not in ("adam", "adamw", "sgd"):
        return
    one = trained(case)
    options: dict[str, Any] = {"momentum": 0.9} if name == "sgd" else {}
    options |= {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
    params = make_params(SHAPES)
    theirs = case.torch_kind(params, lr=0.03, **options)
    with pytest.raises(
        TypeError, match=r"8-bit codes, not numbers; optimizer.state_dict\(dtype=torch"
    ):
        theirs.load_state_dict(saved(one.state_dict()))
        train(theirs, params, 1)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "short codes": (lambda s: s.update(exp_avg=s["exp_avg"][:-1]), r"its state is \(63, 70\)"),
    "flat codes": (lambda s: s.update(exp_avg=s["exp_avg"].view(-1)), r"its state is \(4480,\)"),
    "few scales": (
        lambda s: s.update(exp_avg_scale=s["exp_avg_scale"][:-1]),
        r"scales are \(34,\)",
    ),
    "many scales": (lambda s: s.update(exp_avg_scale=torch.ones(36)), r"scales are \(36,\)"),
    "wide scales": (lambda s: s.update(exp_avg_scale=s["exp_avg_scale"].double()), "float64"),
    "no tensor": (lambda s: s.update(exp_avg_scale=[1.0] * 35), "scales are list"),
    "no scales": (lambda s: s.pop("exp_avg_scale"), "torch.int8"),
    "scales are None": (lambda s: s.update(exp_avg_scale=None), "NoneType|int8"),
    "unsigned codes": (
        lambda s: s.update(exp_avg=s["exp_avg_sq"]),
        r"of torch\.uint8, not torch\.int8",
    ),
    "signed codes": (
        lambda s: s.update(exp_avg_sq=s["exp_avg"]),
        r"of torch\.int8, not torch\.uint8",
    ),
    "codes as numbers": (lambda s: s.update(exp_avg=torch.zeros(64, 70)), r"of torch\.float32"),
    "wide codes": (lambda s: s.update(exp_avg=torch.zeros(64, 70).int()), r"of torch\.int32"),
    "NaN scale": (lambda s: s.update(exp_avg_scale=spoilt(s, float("nan"))), "scale of a block"),
    "infinite scale": (
        lambda s: s.update(exp_avg_scale=spoilt(s, float("inf"))),
        "scale of a block",
    ),
    "negative scale": (lambda s: s.update(exp_avg_scale=spoilt(s, -1.0)), "scale of a block"),
    "no data": (lambda s: s.update(exp_avg_scale=s["exp_avg_scale"].to("meta")), "meta"),
    "sparse": (lambda s: s.update(exp_avg_scale=s["exp_avg_scale"].to_sparse()), "sparse"),
}


def spoilt(slots: dict[str, Any], value: float) -> Tensor:
    scale: Tensor = slots["exp_avg_scale"].clone()
    scale[3] = value
    return scale


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("state_dtype", ["8bit", None])
def test_states_that_cannot_be_are_refused(name: str, state_dtype: str | None) -> None:
    spoil, message = HOSTILE[name]
    case = CASES["adamw"]
    saved = deepcopy(trained(case).state_dict())
    spoil(saved["state"][0])
    two = trained(case, steps=2, state_dtype=state_dtype)
    before = picture(two)
    with pytest.raises(ValueError, match=message) as error:
        two.load_state_dict(saved)
    assert "NpuFusedAdamW: the state of parameter 0, exp_avg" in str(error.value)
    assert_unchanged(two, before)


def test_codes_in_a_float32_optimizer_are_refused_by_the_next_step() -> None:
    case = CASES["adamw"]
    one = trained(case)
    two = twin(case, one, state_dtype=None)
    for mine, other in zip(params_of(one), params_of(two), strict=True):
        two.state[other] = deepcopy(one.state[mine])
    before = picture(two)
    for param in params_of(two):
        param.grad = torch.ones_like(param)
    with pytest.raises(
        RuntimeError, match=r"its state exp_avg is of torch\.int8, not torch\.float32"
    ):
        two.step()
    for param in params_of(two):
        param.grad = None
    assert_unchanged(two, before)
