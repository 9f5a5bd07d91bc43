"""Checkpoints that are refused: nonsense in them, and states of other optimizers, which the message names."""

import copy
from typing import Any

import pytest
import torch

from cases import CASES, Case, each_case
from training import assert_unchanged, make_params, picture, train, with_state

COUNTED = [pytest.param(case, id=name) for name, case in CASES.items() if case.kind.spec.counted]
each_counted = pytest.mark.parametrize("case", COUNTED)


def saved_and_target(case: Case) -> tuple[dict[str, Any], Any]:
    """A state after two steps, and an optimizer with another state that it could be loaded into."""
    params, others = make_params(), make_params()
    source, target = with_state(case, params), with_state(case, others, lr=0.5)
    train(source, params, 2)
    train(target, others, 2, first=10)
    return copy.deepcopy(source.state_dict()), target


def assert_refused(
    target: Any, saved: Any, *words: str, error: type[Exception] = ValueError
) -> str:
    """Nothing is changed, and the message has the class and all the words."""
    before = picture(target)
    with pytest.raises(error) as caught:
        target.load_state_dict(saved)
    assert_unchanged(target, before)
    for word in (type(target).__name__, *words):
        assert word in str(caught.value), caught.value
    return str(caught.value)


STEPS = ["7", b"5", True, -0.5, 2.7, -3, 10**400, 2**53 + 1, 2**60, None, [1], 1j, float("inf")]
STEPS += [torch.tensor(2.5), torch.tensor(True), torch.tensor([1.0, 2.0]), torch.tensor(1j)]
STEPS += [torch.tensor(float("nan")), torch.tensor(1.0, device="meta"), torch.tensor(-1)]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: str(step)[:20])
@each_counted
def test_steps_that_are_no_counts(case: Case, step: Any) -> None:
    saved, target = saved_and_target(case)
    saved["state"][len(saved["state"]) - 1]["step"] = step
    assert_refused(target, saved, "step")


@pytest.mark.parametrize("step", [3, 3.0, torch.tensor(3), torch.tensor([3.0]), torch.tensor(3.0)])
def test_steps_that_are_counts(step: Any) -> None:
    saved, target = saved_and_target(CASES["adamw"])
    saved["state"][0]["step"] = step
    target.load_state_dict(saved)
    loaded = target.state[target.param_groups[0]["params"][0]]["step"]
    assert loaded == 3 and type(loaded) is int


@each_counted
def test_a_state_of_none_does_not_restart_it(case: Case) -> None:
    for name, state in case.kind.spec.states.items():
        if state.flag is None:
            saved, target = saved_and_target(case)
            saved["state"][1][name] = None
            assert_refused(target, saved, name, "parameter 1", "None")


def test_none_where_torch_writes_it() -> None:
    """An SGD without a first gradient has no buffer; amsgrad that is off has no maximum."""
    saved, target = saved_and_target(CASES["sgd"])
    saved["state"][0]["momentum_buffer"] = None
    target.load_state_dict(saved)
    assert "momentum_buffer" not in target.state[target.param_groups[0]["params"][0]]
    saved, target = saved_and_target(CASES["adamw"])
    saved["state"][0]["max_exp_avg_sq"] = None
    target.load_state_dict(saved)
    saved["param_groups"][0]["amsgrad"] = True
    assert_refused(target, saved, "max_exp_avg_sq")


WRONG_NAMES = [["a"], [], "names", 7, [1] * 11, ["a"] * 12, {"a": 1}]


@pytest.mark.parametrize("names", WRONG_NAMES, ids=str)
@each_case
def test_wrong_param_names(case: Case, names: Any) -> None:
    saved, target = saved_and_target(case)
    saved["param_groups"][0]["param_names"] = names
    assert_refused(target, saved, "param_names", "11")
    params = make_params()
    with pytest.raises(ValueError, match="param_names"):
        case.make([{"params": params, "param_names": names}])
    with pytest.raises(ValueError, match="param_names"):
        case.make([{"params": iter(params), "param_names": names}])


@each_case
def test_param_names_are_loaded(case: Case) -> None:
    saved, target = saved_and_target(case)
    names = [f"p{number}" for number in range(11)]
    saved["param_groups"][0]["param_names"] = names
    target.load_state_dict(saved)
    assert target.param_groups[0]["param_names"] == names
    train(target, target.param_groups[0]["params"], 1)


WRONG_KINDS = [torch.complex64, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", WRONG_KINDS, ids=str)
@each_case
def test_states_of_another_kind_of_number(case: Case, dtype: torch.dtype) -> None:
    saved, target = saved_and_target(case)
    name = next(iter(case.kind.spec.states))
    saved["state"][0][name] = saved["state"][0][name].to(dtype)
    assert_refused(target, saved, name, str(dtype))


def test_states_without_values() -> None:
    saved, target = saved_and_target(CASES["adamw"])
    saved["state"][1]["exp_avg"] = torch.empty(4, 3, device="meta")
    assert_refused(target, saved, "exp_avg", "meta")
    saved["state"][1]["exp_avg"] = torch.zeros(4, 3).to_sparse()
    assert_refused(target, saved, "exp_avg", "sparse")


def test_a_real_state_of_a_complex_parameter() -> None:
    params = make_params([(3,)], torch.complex64)
    target = CASES["adamw"].make(params)
    train(target, params, 1)
    saved = copy.deepcopy(target.state_dict())
    saved["state"][0]["exp_avg"] = torch.zeros(3)
    assert_refused(target, saved, "exp_avg", "complex64", "float32")


WHOLE = {"backend": "native", "state_dtype": None, "master_weights": True, "rounding": "stochastic"}


@pytest.mark.parametrize("option", WHOLE)
@each_case
def test_options_of_the_whole_optimizer_in_a_saved_group(case: Case, option: str) -> None:
    """They would be taken without any effect."""
    saved, target = saved_and_target(case)
    saved["param_groups"][0][option] = WHOLE[option]
    assert_refused(target, saved, option, "whole optimizer", "group 0")


LAYOUTS = [
    {"state": [], "param_groups": []},
    {"state": {}, "param_groups": {}},
    {"state": {}, "param_groups": [7]},
    {"state": {}, "param_groups": [{"lr": 1.0}]},
    {"state": {}, "param_groups": [{"params": 3}]},
]


@pytest.mark.parametrize("saved", LAYOUTS, ids=str)
def test_other_layouts(saved: dict[str, Any]) -> None:
    _, target = saved_and_target(CASES["adamw"])
    assert_refused(target, saved)


@pytest.mark.parametrize("slots", [7, None, "x", [1]], ids=str)
@each_case
def test_a_state_of_a_parameter_that_is_no_dictionary(case: Case, slots: Any) -> None:
    saved, target = saved_and_target(case)
    saved["state"][10] = slots
    assert_refused(target, saved, "parameter 10", "dictionary")


def test_what_is_no_dictionary_gets_a_sentence() -> None:
    saved, target = saved_and_target(CASES["adamw"])
    assert_refused(target, "x.pt", "torch.load('x.pt')", error=TypeError)
    assert_refused(target, None, "state_dict()", "NoneType", error=TypeError)
    assert_refused(target, {"model": {}, "optimizer": saved}, "'optimizer'")


# What saves a state, and the name that the error must have.
TORCH_KINDS = {
    kind: {}
    for kind in ("Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
}
TORCH_KINDS |= {"Adam": {"amsgrad": True}, "AdamW": {}, "SGD": {"momentum": 0.9}, "SparseAdam": {}}
TORCH_KINDS |= {"Adafactor": {}, "Muon": {}, "LBFGS": {}}
TAKEN = {("AdamW", "adamw"), ("SGD", "sgd"), ("Adam", "adamw")}


def torch_state(name: str, options: dict[str, Any], trained: bool) -> dict[str, Any]:
    params = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2, 2))]
    source = getattr(torch.optim, name)(params, **options)
    if trained and name == "SparseAdam":
        for param in params:
            param.grad = torch.ones_like(param).to_sparse()
        source.step()
    elif trained:
        sum(param.square().sum() for param in params).backward()
        source.step(*([lambda: torch.tensor(1.0)] if name == "LBFGS" else []))
    return copy.deepcopy(source.state_dict())


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="others may have more")
def test_every_optimizer_of_torch_is_tried() -> None:
    kinds = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert kinds - {"Optimizer"} <= TORCH_KINDS.keys()


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "fresh"])
@pytest.mark.parametrize("name", TORCH_KINDS)
@each_case
def test_the_error_names_torchs_optimizer(case: Case, name: str, trained: bool) -> None:
    if (name, case.name) in TAKEN or case.name == name.lower():
        return
    if {name.lower(), case.name} == {"adam", "adamw"}:
        return  # told by the meaning of their decay alone: see test_state_refusals.py
    target = with_state(case, make_params([(3, 2), (2, 2)]))
    train(target, target.param_groups[0]["params"], 1)
    saved = torch_state(name, TORCH_KINDS[name], trained)
    text = assert_refused(target, saved, f"torch.optim.{name}")
    assert not trained or " or " not in text, text


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "fresh"])
@pytest.mark.parametrize("other", CASES)
@each_case
def test_the_error_names_our_optimizer(case: Case, other: str, trained: bool) -> None:
    if other == case.name or {other, case.name} == {"adam", "adamw"}:
        return
    params, others = make_params(), make_params()
    source, target = with_state(CASES[other], params), with_state(case, others)
    train(source, params, int(trained))
    assert_refused(target, source.state_dict(), f"come from {CASES[other].kind.__name__}")
