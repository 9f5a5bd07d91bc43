"""States that are refused: of other optimizers and spoilt ones; nothing is changed by them."""

import copy
from typing import Any

import pytest
import torch

from cases import CASES, Case, each_case
from training import (
    assert_unchanged,
    make_params,
    picture,
    train,
    with_state,
)

OTHERS = [
    pytest.param(CASES[one], CASES[two], id=f"{one} into {two}")
    for one in CASES
    for two in CASES
    # Adam and AdamW are the same where nothing decays.
    if one != two and {one, two} != {"adam", "adamw"}
]


@pytest.mark.parametrize(("one", "two"), OTHERS)
def test_a_state_of_another_optimizer_is_refused(one: Case, two: Case) -> None:
    params, others = make_params(), make_params()
    source, target = with_state(one, params), with_state(two, others)
    train(source, params, 2)
    train(target, others, 2)
    before = picture(target)
    with pytest.raises(ValueError, match=r"another optimizer|lacks|known are|takes it"):
        target.load_state_dict(source.state_dict())
    assert_unchanged(target, before)


FOREIGN = [
    pytest.param(case, kind, id=f"{kind.__name__} into {stem}")
    for stem, case in CASES.items()
    for kind in (torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adamax)
    if case.torch_kind is not kind
]


@pytest.mark.parametrize(("case", "kind"), FOREIGN)
def test_a_state_of_another_torch_optimizer_is_refused(case: Case, kind: type) -> None:
    params, others = make_params(), make_params()
    source, target = kind(params), with_state(case, others)
    train(source, params, 2)
    train(target, others, 2)
    before = picture(target)
    with pytest.raises(ValueError, match=case.kind.__name__):
        target.load_state_dict(source.state_dict())
    assert_unchanged(target, before)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "torch"])
@pytest.mark.parametrize(("one", "two"), [("adam", "adamw"), ("adamw", "adam")])
def test_adam_and_adamw_differ_in_their_decay(one: str, two: str, ours: bool) -> None:
    """The same state, another meaning of weight_decay; without decay they are the same."""
    for decay in (0.1, 0.0):
        params = make_params()
        kind = CASES[one].kind if ours else CASES[one].torch_kind
        assert kind is not None
        source, target = kind(params, weight_decay=decay), CASES[two].make(make_params())
        train(source, params, 1)
        before = picture(target)
        if not decay:
            target.load_state_dict(source.state_dict())
            assert target.state_dict()["param_groups"][0]["decoupled_weight_decay"] is (
                two == "adamw"
            )
            continue
        with pytest.raises(ValueError, match=f"{CASES[one].kind.__name__} takes it"):
            target.load_state_dict(source.state_dict())
        assert_unchanged(target, before)


def spoil_shape(saved: dict[str, Any]) -> None:
    state = list(saved["state"].values())[-1]
    name = next(n for n in state if n != "step")
    state[name] = torch.zeros(3, 5, 7)


def spoil_kind(saved: dict[str, Any]) -> None:
    state = list(saved["state"].values())[-1]
    name = next(n for n in state if n != "step")
    state[name] = "nonsense"


def spoil_option(saved: dict[str, Any]) -> None:
    saved["param_groups"][-1]["lr"] = -1.0


def spoil_name(saved: dict[str, Any]) -> None:
    state = list(saved["state"].values())[-1]
    state["exp_inf"] = state.pop(next(n for n in state if n != "step"))


def spoil_count(saved: dict[str, Any]) -> None:
    saved["param_groups"][-1]["params"].pop()


def spoil_groups(saved: dict[str, Any]) -> None:
    saved["param_groups"].append(copy.deepcopy(saved["param_groups"][0]))


def spoil_step(saved: dict[str, Any]) -> None:
    list(saved["state"].values())[-1]["step"] = torch.tensor([1.0, 2.0])


def spoil_negative_step(saved: dict[str, Any]) -> None:
    list(saved["state"].values())[-1]["step"] = -3


def spoil_nan_step(saved: dict[str, Any]) -> None:
    list(saved["state"].values())[-1]["step"] = torch.tensor(float("nan"))


def spoil_no_step(saved: dict[str, Any]) -> None:
    del list(saved["state"].values())[-1]["step"]


SPOILERS = [spoil_shape, spoil_kind, spoil_option, spoil_count, spoil_groups]
# SGD counts no steps, and its one state may be missing: it is made when momentum is first used.
COUNTED_SPOILERS = [spoil_name, spoil_step, spoil_negative_step, spoil_nan_step, spoil_no_step]


@pytest.mark.parametrize("spoil", SPOILERS + COUNTED_SPOILERS, ids=lambda f: f.__name__)
@each_case
def test_a_spoilt_state_is_refused_whole(case: Case, spoil: Any) -> None:
    """The last entry is wrong: whatever came before it must not have been taken."""
    if spoil in COUNTED_SPOILERS and not case.kind.spec.counted:
        return
    params, others = make_params(), make_params()
    source, target = with_state(case, params), with_state(case, others, lr=0.5)
    train(source, params, 2)
    train(target, others, 2, first=10)
    saved = copy.deepcopy(source.state_dict())
    spoil(saved)
    before, given = picture(target), copy.deepcopy(saved)
    with pytest.raises(ValueError, match=case.kind.__name__):
        target.load_state_dict(saved)
    assert_unchanged(target, before)
    assert str(saved) == str(given), "the state handed in was changed"


@pytest.mark.parametrize("saved", [{}, {"state": {}}, {"param_groups": []}, {"model": {}}], ids=str)
@each_case
def test_something_else_than_a_state_is_refused(case: Case, saved: dict[str, Any]) -> None:
    """Such as a whole checkpoint with the optimizer's state one level down."""
    params = make_params()
    target = with_state(case, params)
    train(target, params, 1)
    before = picture(target)
    with pytest.raises(ValueError, match=case.kind.__name__):
        target.load_state_dict(saved)
    assert_unchanged(target, before)
