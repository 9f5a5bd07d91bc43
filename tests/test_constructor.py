"""Constructors speak plainly: options come first, unknown ones get a remedy, and no parameters get a sentence."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from cases import CASES, Bad, Case, Options, each_backend, each_case
from ingot import optim
from training import (
    assert_same,
    assert_unchanged,
    make_params,
    params_of,
    picture,
    tensors_of,
    train,
    with_state,
)

BAD = [
    pytest.param(case, bad, id=f"{name}-{bad.options}")
    for name, case in CASES.items()
    for bad in case.bad
]
EXTRA = [{"rounding_seed": -1}, {"rounding": "up"}, {"state_dtype": "int8"}, {"master_weights": 2}]


@pytest.mark.parametrize(("case", "bad"), BAD)
def test_options_are_looked_at_before_parameters(case: Case, bad: Bad) -> None:
    """None would raise TypeError, and a generator would be used up."""
    with pytest.raises(bad.error, match=case.kind.__name__):
        case.make(None, **bad.options)
    left = iter(make_params([(3,)]))
    with pytest.raises(bad.error):
        case.kind(left, **{"lr": 0.1, **bad.options})
    assert len(list(left)) == 1


@pytest.mark.parametrize("options", EXTRA, ids=str)
@each_case
def test_common_options_are_looked_at_first_too(case: Case, options: Options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        case.make(None, **options)


@each_case
@pytest.mark.parametrize("option", ["fused", "foreach"])
def test_options_of_torch_get_a_remedy(case: Case, option: str) -> None:
    name = case.kind.__name__
    message = f"{name} has no option '{option}'; every step is fused: leave it out"
    with pytest.raises(TypeError, match=re.escape(message)):
        case.make(make_params(), **{option: True})


@each_case
@pytest.mark.parametrize("option", ["capturable", "differentiable", "decoupled_weight_decay"])
def test_other_options_of_torch_get_a_remedy(case: Case, option: str) -> None:
    with pytest.raises(TypeError, match=rf"{case.kind.__name__} has no option '{option}'; [^;]+: "):
        case.make(make_params(), **{option: True})


@each_case
def test_typos_get_a_suggestion(case: Case) -> None:
    typos = {"weight_decy": "weight_decay", "max_grad_nrm": "max_grad_norm", "backnd": "backend"}
    typos |= {f"{name}x": name for name in case.signature if len(name) > 3}
    for typo, option in typos.items():
        with pytest.raises(TypeError, match=f"has no option '{typo}'; did you mean '{option}'"):
            case.make(make_params(), **{typo: 0.5})
    with pytest.raises(
        TypeError, match=r"has no option 'zzz'; its options are lr, .*rounding_seed"
    ):
        case.make(make_params(), zzz=1)


def test_a_subclass_is_asked_for_its_own_options() -> None:
    class Mine(optim.NpuFusedAdamW):
        def __init__(self, params: Any, momentum_like: float = 0.9, **options: Any) -> None:
            super().__init__(params, **options)

    with pytest.raises(TypeError, match=r"Mine has no option 'momentum_lik'; .*'momentum_like'"):
        Mine(make_params(), momentum_lik=0.5)
    with pytest.raises(TypeError, match=r"Mine has no option 'bets'; .*'betas'"):
        Mine(make_params(), bets=(0.5, 0.5))


NO_PARAMS = [
    pytest.param(nn.Linear(2, 2), "model.parameters()", id="model"),
    pytest.param(nn.Sequential(nn.Linear(2, 2)), "model.parameters()", id="sequential"),
    pytest.param(nn.Linear(2, 2).state_dict(), "dictionary", id="state_dict"),
    pytest.param({"params": make_params([(3,)])}, "into a list", id="group"),
    pytest.param(None, "iterable of tensors", id="None"),
    pytest.param("weights", "iterable of tensors", id="string"),
    pytest.param(7, "iterable of tensors", id="number"),
]


@pytest.mark.parametrize(("params", "words"), NO_PARAMS)
@each_case
def test_something_else_than_parameters_gets_a_sentence(
    case: Case, params: Any, words: str
) -> None:
    message = f"{case.kind.__name__}: params.*{re.escape(words)}"
    with pytest.raises(TypeError, match=message):
        case.make(params)
    optimizer = with_state(case, make_params([(3,)]))
    train(optimizer, params_of(optimizer), 1)
    before = picture(optimizer)
    for group in ({"params": params}, {"params": params, "lr": 0.5}):
        with pytest.raises(TypeError, match=message):
            optimizer.add_param_group(group)
        assert_unchanged(optimizer, before)


@each_case
def test_one_tensor_may_be_a_group(case: Case) -> None:
    (param,) = make_params([(3,)])
    assert params_of(case.make([{"params": param}])) == [param]
    with pytest.raises(TypeError, match="iterable of Tensors"):
        case.make(param)


@each_backend
@each_case
@pytest.mark.parametrize("shape", [(1,), (1, 1)], ids=str)
def test_lr_of_one_element(case: Case, backend: str, shape: Any) -> None:
    """As torch.optim takes it; what is written into it counts from the next step on."""
    runs = []
    for kind in (float, lambda x: torch.full(shape, x, dtype=torch.float64)):
        params = make_params([(5,), (2, 3)])
        optimizer = case.make(params, lr=kind(0.02), backend=backend)
        train(optimizer, params, 2)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = 0.3 if isinstance(lr, float) else lr.fill_(0.3)
        train(optimizer, params, 2, first=2)
        loaded = case.make(params, lr=1.0)
        loaded.load_state_dict(optimizer.state_dict())
        assert loaded.param_groups[0]["lr"] == 0.3
        runs.append(tensors_of(optimizer))
    assert_same(runs[0], runs[1])


@each_case
def test_duplicates_are_warned_of_as_torch_does(case: Case) -> None:
    """They are in the group, and checkpoints of such an optimizer load, also torch's."""
    (param,) = make_params([(3,)])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = with_state(case, [param, param])
    assert params_of(optimizer) == [param, param]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [param]})
    param.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        other = with_state(case, [*(make_params([(3,)]) * 2)])
    other.load_state_dict(saved)
    assert len(other.state) == len(optimizer.state) == 1
    if case.torch_kind is None:
        return
    with pytest.warns(UserWarning, match="duplicate parameters"):
        theirs = case.torch_kind([*(make_params([(3,)]) * 2)])
    theirs.load_state_dict(saved)
    other.load_state_dict(theirs.state_dict())
    assert len(theirs.state) == len(other.state) == 1
