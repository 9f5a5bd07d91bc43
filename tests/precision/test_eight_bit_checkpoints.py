"""8-bit states are saved and loaded bit for bit, become float32 and come back, and nobody takes codes for numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import CASES, Case, each_case
from ingot.optimizer import FusedOptimizer
from ingot.storage.blockwise8 import SIGNED, UNSIGNED
from training import (
    assert_same,
    assert_unchanged,
    make_params,
    params_of,
    picture,
    tensors_of,
    through_a_file,
    train,
    with_state,
)

SHAPES = [(64, 70), (7,), (4, 8, 12, 12)]
EIGHT: dict[str, Any] = {"state_dtype": "8bit", "lr": 0.03}
each_rounding = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
TORCH = [name for name, case in CASES.items() if case.torch_kind is not None]


def trained(case: Case, steps: int = 3, **options: Any) -> FusedOptimizer:
    params = make_params(SHAPES)
    params[2] = torch.nn.Parameter(params[2].detach().to(memory_format=torch.channels_last))
    optimizer = with_state(case, params, **{**EIGHT, **options})
    train(optimizer, params, steps)
    return optimizer


def twin(case: Case, one: torch.optim.Optimizer, **options: Any) -> FusedOptimizer:
    """Another optimizer over copies of the parameters."""
    params = [p.detach().clone().requires_grad_() for p in params_of(one)]
    return with_state(case, params, **{**EIGHT, **options})


def go_on(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        train(optimizer, params_of(optimizer), 3, first=3)


def through_float32(optimizer: FusedOptimizer) -> dict[str, Any]:
    return through_a_file(optimizer.state_dict(dtype=torch.float32))


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
