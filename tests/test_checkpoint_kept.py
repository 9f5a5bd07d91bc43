"""What checkpoints keep: the user's own entries, exact step counts, what hooks make of them; and what states become."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import CASES, Case, each_backend, each_case
from training import (
    assert_same,
    make_params,
    params_of,
    tensors_of,
    through_a_file,
    train,
    with_state,
)


def trained(case: Case, steps: int = 2, **options: Any) -> Any:
    """An optimizer after some steps."""
    params = make_params([(3,), (2, 2)])
    optimizer = with_state(case, params, **options)
    train(optimizer, params, steps)
    return optimizer


def twin(case: Case, optimizer: Any) -> Any:
    """A new optimizer for copies of the parameters, without a state."""
    copies = [torch.nn.Parameter(param.detach().clone()) for param in params_of(optimizer)]
    return with_state(case, copies)


@each_case
def test_what_a_user_puts_beside_the_states_is_kept(case: Case) -> None:
    """Tensors stay of their type; they are copies, as the states are."""
    source = trained(case)
    first, second = params_of(source)
    values = {
        "ema": torch.full((3,), 0.5, dtype=torch.bfloat16),
        "seen": torch.tensor(7),
        "history": [torch.ones(2), (1, "x"), {"deep": torch.zeros(1)}],
        "note": "mine",
        "nothing": None,
        "sum": 3.0,  # and some names that optimizers of torch use for theirs
        "mu": torch.ones(2),
        "row_var": None,
    }
    source.state[first].update(values)
    target = twin(case, source)
    saved = through_a_file(source.state_dict())
    target.load_state_dict(saved)
    slots = target.state[params_of(target)[0]]
    assert slots["ema"].dtype is torch.bfloat16 and torch.equal(slots["ema"], values["ema"])
    assert slots["seen"].dtype is torch.int64 and slots["note"] == "mine"
    assert slots["history"][1] == (1, "x") and torch.equal(slots["history"][0], torch.ones(2))
    assert slots["ema"] is not saved["state"][0]["ema"] and slots["nothing"] is None
    assert slots["sum"] == 3.0 and torch.equal(slots["mu"], torch.ones(2)) and "row_var" in slots
    saved["state"][0]["ema"].zero_()
    assert torch.equal(slots["ema"], values["ema"])
    for optimizer in (source, target):
        train(optimizer, params_of(optimizer), 2, first=2)
    for one, two in zip(params_of(source), params_of(target), strict=True):
        assert torch.equal(one, two)
    assert "ema" in target.state_dict()["state"][0] and second in source.state


@each_case
def test_a_parameter_with_nothing_but_the_users(case: Case) -> None:
    """It never had a gradient, so there is no state yet, and that is no error."""
    source = with_state(case, make_params([(3,), (2, 2)]))
    source.state[params_of(source)[0]]["ema"] = torch.ones(3)
    target = twin(case, source)
    target.load_state_dict(source.state_dict())
    assert list(target.state[params_of(target)[0]]) == ["ema"]
    for optimizer in (source, target):
        train(optimizer, params_of(optimizer), 2)
    assert_same(tensors_of(target), tensors_of(source))


@each_case
def test_entries_that_are_of_no_parameter(case: Case) -> None:
    """torch.optim allows them, and hands them on as they are."""
    source = trained(case)
    source.state["global_step"] = 7
    source.state["counters"] = {"step": 3}
    saved = source.state_dict()
    assert saved["state"]["global_step"] == 7 and saved["state"]["counters"] == {"step": 3}
    target = twin(case, source)
    target.load_state_dict(through_a_file(saved))
    assert target.state["global_step"] == 7 and target.state["counters"] == {"step": 3}
    again = target.state_dict()
    assert again["state"]["global_step"] == 7
    for optimizer in (source, target):
        train(optimizer, params_of(optimizer), 2, first=2)
    assert_same(tensors_of(target), tensors_of(source))


@each_case
def test_own_keys_of_a_group_named_like_an_option_elsewhere(case: Case) -> None:
    """Every optimizer loads what it has saved, also where a user's key is an option of some other one."""
    source = trained(case)
    keys = {"alpha": 1, "rho": 2, "lambd": "x", "centered": True, "momentum_decay": 0.5}
    keys = {key: value for key, value in keys.items() if key not in case.kind.rules}
    source.param_groups[0].update(keys)
    target = twin(case, source)
    target.load_state_dict(through_a_file(source.state_dict()))
    assert {key: target.param_groups[0][key] for key in keys} == keys


COUNTED = [name for name, case in CASES.items() if case.kind.spec.counted]
LARGE = [2**24 - 1, 2**24, 2**24 + 1, 2**31 + 3, 2**40 + 1, 2**53]


@pytest.mark.parametrize("step", LARGE)
@pytest.mark.parametrize("name", COUNTED)
def test_large_step_counts_are_exact(name: str, step: int) -> None:
    source = trained(CASES[name])
    for param in params_of(source):
        source.state[param]["step"] = step
    target = twin(CASES[name], source)
    saved = through_a_file(source.state_dict())
    assert saved["state"][0]["step"].shape == () and saved["state"][0]["step"] == step
    target.load_state_dict(saved)
    assert [target.state[param]["step"] for param in params_of(target)] == [step, step]


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("step", [1000, 2**24 + 1, 2**31 + 3])
def test_torch_goes_on_from_a_large_count(step: int, how: dict[str, bool]) -> None:
    """Its own float32 count would stand still; its fused step makes it float32 again, and goes on as it can."""
    source = trained(CASES["adamw"])
    for param in params_of(source):
        source.state[param]["step"] = step
    copies = [torch.nn.Parameter(param.detach().clone()) for param in params_of(source)]
    theirs = torch.optim.AdamW(copies, **how)
    theirs.load_state_dict(through_a_file(source.state_dict()))
    theirs.param_groups[0].update(how)
    train(source, params_of(source), 3, first=2)
    train(theirs, copies, 3, first=2)
    for our, their in zip(params_of(source), copies, strict=True):
        torch.testing.assert_close(our, their, rtol=2e-6, atol=1e-6)
    if not how.get("fused"):
        assert theirs.state[copies[0]]["step"] == step + 3
        back = with_state(CASES["adamw"], copies)
        back.load_state_dict(through_a_file(theirs.state_dict()))
        assert back.state[copies[0]]["step"] == step + 3


@each_case
def test_hooks_see_tensors_and_may_return_something_new(case: Case) -> None:
    optimizer = trained(case)
    seen: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda optimizer: seen.append("before"))

    def note(optimizer: Any, saved: dict[str, Any]) -> None:
        seen.extend(slots.get("step") for slots in saved["state"].values())
        saved["note"] = "in place"

    optimizer.register_state_dict_post_hook(note)
    optimizer.register_state_dict_post_hook(lambda optimizer, saved: {"renamed": saved})
    result = optimizer.state_dict()
    assert list(result) == ["renamed"] and result["renamed"]["note"] == "in place"
    assert seen.pop(0) == "before" and len(seen) == 2
    if case.kind.spec.counted:
        assert all(isinstance(step, Tensor) and step == 2 for step in seen)
        assert all(type(optimizer.state[p]["step"]) is int for p in params_of(optimizer))

    def unpack(optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        return saved["renamed"]

    target = twin(case, optimizer)
    target.register_load_state_dict_pre_hook(unpack)
    target.load_state_dict(result)
    assert_same(tensors_of(target), tensors_of(optimizer))


@each_backend
@each_case
def test_loading_in_inference_mode_makes_ordinary_tensors(case: Case, backend: str) -> None:
    source = trained(case, lr=torch.tensor(0.01), backend=backend)
    source.state[params_of(source)[0]]["ema"] = torch.ones(3)
    target = with_state(case, copy.deepcopy(params_of(source)), backend=backend)
    with torch.inference_mode():
        saved = copy.deepcopy(source.state_dict())
        target.load_state_dict(saved)
    tensors = [value for slots in target.state.values() for value in slots.values()]
    tensors = [
        value for value in [*tensors, target.param_groups[0]["lr"]] if torch.is_tensor(value)
    ]
    assert len(tensors) > 2 and not any(value.is_inference() for value in tensors)
    for optimizer in (source, target):
        train(optimizer, params_of(optimizer), 2, first=2)
    assert_same(tensors_of(target), tensors_of(source))


def test_the_meaning_of_weight_decay_is_saved() -> None:
    """Adam and AdamW have the same options and states; torch.optim has this mark, too."""
    saved = trained(CASES["adamw"]).state_dict()
    assert saved["param_groups"][0]["decoupled_weight_decay"] is True
    saved["param_groups"][0]["decoupled_weight_decay"] = False
    target = twin(CASES["adamw"], trained(CASES["adamw"]))
    with pytest.raises(ValueError, match="NpuFusedAdam takes it"):
        target.load_state_dict(saved)
    saved["param_groups"][0]["weight_decay"] = 0
    target.load_state_dict(saved)
    assert "decoupled_weight_decay" not in target.param_groups[0]


@each_case
def test_a_subclass_loads_what_its_parent_saved(case: Case) -> None:
    class Mine(case.kind):  # type: ignore[misc, name-defined]
        pass

    source = trained(case)
    options = {"lr": 1.0, **({"momentum": 0.5} if case.name == "sgd" else {})}
    mine = Mine([torch.nn.Parameter(p.detach().clone()) for p in params_of(source)], **options)
    mine.load_state_dict(through_a_file(source.state_dict()))
    assert_same(tensors_of(mine), tensors_of(source))
    source.load_state_dict(mine.state_dict())


@each_case
def test_a_group_added_after_loading_has_no_foreign_options(case: Case) -> None:
    """torch.optim marks the defaults of every optimizer that loads with an option of its own."""
    optimizer = trained(case)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": make_params([(4,)])})
    assert "differentiable" not in optimizer.param_groups[-1]
    assert optimizer.param_groups[0].keys() == optimizer.param_groups[1].keys()
