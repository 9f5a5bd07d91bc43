"""Options: signatures and defaults as documented, every wrong value refused everywhere."""

import inspect
import re

import pytest
import torch

from cases import CASES, Bad, Case, Options, each_backend, each_case, each_setting
from cases.declare import REQUIRED
from ingot.declare.options import OptionError
from training import assert_same, assert_unchanged, make_params, picture, tensors_of, train

# The keyword-only options that every class has.
COMMON = {
    "maximize": False,
    "max_grad_norm": None,
    "backend": None,
    "state_dtype": None,
    "master_weights": False,
    "rounding": "nearest",
    "rounding_seed": 0,
}
BAD = [
    pytest.param(case, bad, id=f"{name}-{bad.options}")
    for name, case in CASES.items()
    for bad in case.bad
]
each_bad = pytest.mark.parametrize(("case", "bad"), BAD)


@each_case
def test_signature(case: Case) -> None:
    """The positional part in the order of the documents, then keyword-only options."""
    parameters = list(inspect.signature(case.kind).parameters.values())
    assert parameters[0].name == "params"
    positional = [p for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == list(case.signature)
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert keywords == dict(case.keywords)
    defaults = {p.name: p.default for p in positional}
    if case.signature["lr"] is REQUIRED:
        assert defaults.pop("lr") not in (0, 1e-3)
    expected = {name: value for name, value in case.signature.items() if value is not REQUIRED}
    assert defaults == expected
    assert {name: type(value) for name, value in defaults.items() if type(value) is bool} == {
        name: bool for name, value in expected.items() if type(value) is bool
    }


@each_case
def test_defaults_arrive_in_the_groups(case: Case) -> None:
    optimizer = case.make(make_params())
    group = optimizer.param_groups[0]
    for name, value in {**case.signature, **case.keywords}.items():
        if value is not REQUIRED and name not in ("betas", "eps") | COMMON.keys():
            assert group[name] == value
    assert group["maximize"] is False


@each_case
def test_positional_options(case: Case) -> None:
    """Positional and keyword arguments mean the same."""
    values = [0.5 if value is REQUIRED else value for value in case.signature.values()]
    by_place = case.kind(make_params(), *values)
    by_name = case.kind(make_params(), **dict(zip(case.signature, values, strict=True)))
    for one, two in zip(by_place.param_groups, by_name.param_groups, strict=True):
        assert {k: v for k, v in one.items() if k != "params"} == {
            k: v for k, v in two.items() if k != "params"
        }
    with pytest.raises(TypeError):
        case.kind(make_params(), *values, True)


@each_case
def test_an_unknown_option_is_refused(case: Case) -> None:
    with pytest.raises(TypeError, match="momentun"):
        case.make(make_params(), momentun=0.9)


@each_case
@pytest.mark.parametrize("option", ["foreach", "fused", "capturable", "differentiable"])
def test_no_option_of_torch_is_quietly_ignored(case: Case, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        case.make(make_params(), **{option: True})


@each_case
def test_own_keys_of_a_group_are_kept_and_not_used(case: Case) -> None:
    ours, plain = make_params(), make_params()
    optimizer = case.make([{"params": ours, "name": "head", "momentun": 0.9}])
    other = case.make(plain)
    for params, each in ((ours, optimizer), (plain, other)):
        train(each, params, 3)
    assert_same(tensors_of(optimizer), tensors_of(other))
    loaded = case.make(make_params())
    loaded.load_state_dict(optimizer.state_dict())
    assert loaded.param_groups[0]["name"] == "head"
    assert loaded.param_groups[0]["momentun"] == 0.9


def names_everything(bad: Bad, error: Exception) -> None:
    """The message has the option and the value that is wrong, and says what is allowed."""
    text = str(error)
    assert re.search(rf"\b{bad.wrong}\b", text), text
    value = bad.options[bad.wrong] if bad.wrong in bad.options else bad.options["eps"]
    wrong = [value, *value] if isinstance(value, tuple) else [value]
    assert any(repr(each) in text for each in wrong) or error.__class__ is OptionError, text
    assert re.search(r"must be|needs|give one", text), text


@each_bad
def test_the_constructor_refuses(case: Case, bad: Bad) -> None:
    with pytest.raises(bad.error) as caught:
        case.make(make_params(), **bad.options)
    names_everything(bad, caught.value)
    assert case.kind.__name__ in str(caught.value)


@each_bad
def test_a_group_refuses(case: Case, bad: Bad) -> None:
    one, two = make_params([(3,), (2, 2)])
    groups = [{"params": [one]}, {"params": [two], **bad.options}]
    with pytest.raises(bad.error) as caught:
        case.make(groups)
    names_everything(bad, caught.value)


@each_bad
def test_add_param_group_refuses_and_changes_nothing(case: Case, bad: Bad) -> None:
    params = make_params([(3,), (2, 2)])
    optimizer = case.make(params)
    train(optimizer, params, 1)
    before = picture(optimizer)
    (extra,) = make_params([(4,)])
    with pytest.raises(bad.error) as caught:
        optimizer.add_param_group({"params": [extra], **bad.options})
    names_everything(bad, caught.value)
    assert_unchanged(optimizer, before)
    optimizer.add_param_group({"params": [extra]})
    train(optimizer, [*params, extra], 1, first=1)


def test_sgd_needs_a_learning_rate() -> None:
    kind = CASES["sgd"].kind
    with pytest.raises(ValueError, match="lr"):
        kind(make_params())
    one, two = make_params([(3,), (2, 2)])
    with pytest.raises(ValueError, match="lr"):
        kind([{"params": [one], "lr": 0.1}, {"params": [two]}])
    optimizer = kind([{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.2}])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": make_params([(4,)])})
    assert len(optimizer.param_groups) == 2


def test_the_nesterov_error_is_of_both_kinds() -> None:
    """The documents say TypeError, torch says ValueError."""
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match="nesterov"):
            CASES["sgd"].make(make_params(), nesterov=True)
        with pytest.raises(kind, match="nesterov"):
            CASES["sgd"].make(make_params(), nesterov=True, momentum=0.9, dampening=0.5)


@each_backend
def test_both_spellings_of_bert_adam(backend: str) -> None:
    runs = []
    for options in (
        {"b1": 0.7, "b2": 0.95, "e": 1e-3},
        {"betas": (0.7, 0.95), "eps": 1e-3},
        {"betas": [0.7, 0.95], "e": 1e-3},
    ):
        params = make_params()
        optimizer = CASES["bert_adam"].make(params, **options, backend=backend)
        group = optimizer.param_groups[0]
        assert (group["b1"], group["b2"], group["e"]) == (0.7, 0.95, 1e-3)
        train(optimizer, params, 3)
        runs.append(tensors_of(optimizer))
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


def test_both_spellings_in_a_group() -> None:
    one, two = make_params([(3,), (2,)])
    groups = [{"params": [one], "betas": (0.5, 0.6)}, {"params": [two], "eps": 0.25}]
    optimizer = CASES["bert_adam"].make(groups)
    assert [g["b1"] for g in optimizer.param_groups] == [0.5, 0.9]
    assert [g["b2"] for g in optimizer.param_groups] == [0.6, 0.999]
    assert [g["e"] for g in optimizer.param_groups] == [1e-6, 0.25]
    with pytest.raises(ValueError, match="spelling"):
        optimizer.add_param_group({"params": make_params([(4,)]), "eps": 0.25, "e": 0.25})


@each_backend
@each_setting
def test_tensor_lr(case: Case, options: Options, backend: str) -> None:
    """A 0-dim tensor is as good as a float, and what is written into it counts from the next step on."""
    runs = []
    for kind in (float, lambda x: torch.tensor(x, dtype=torch.float64)):
        params = make_params([(5,), (2, 3)])
        lr = kind(0.02)
        optimizer = case.make(params, **{**options, "lr": lr}, backend=backend)
        train(optimizer, params, 2)
        if isinstance(lr, float):
            optimizer.param_groups[0]["lr"] = 0.3
        else:
            optimizer.param_groups[0]["lr"].fill_(0.3)
        train(optimizer, params, 2, first=2)
        runs.append(tensors_of(optimizer))
    assert_same(runs[0], runs[1])


@each_backend
@each_case
def test_tensor_options_count_as_numbers(case: Case, backend: str) -> None:
    """torch.optim takes tensors as betas; a tensor option computes what its value computes."""
    names = [n for n in ("betas", "weight_decay", "momentum", "eps", "e") if n in case.signature]
    values = {"betas": (0.75, 0.5), "weight_decay": 0.125, "momentum": 0.5, "eps": 0.25, "e": 0.25}
    runs = []
    for kind in (float, torch.tensor):
        options = {
            name: tuple(map(kind, values[name])) if name == "betas" else kind(values[name])
            for name in names
        }
        params = make_params([(5,), (2, 3)])
        optimizer = case.make(params, **options, backend=backend)
        train(optimizer, params, 3)
        runs.append(tensors_of(optimizer))
    assert_same(runs[0], runs[1])
