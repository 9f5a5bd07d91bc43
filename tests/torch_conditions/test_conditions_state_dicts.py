"""PyTorch's conditions: what state_dict saves and load_state_dict takes, in all variants, and their hooks."""

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
from conditions import build, each_info, each_input, problem, train
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.common_optimizers import OptimizerInfo

from training import assert_same, assert_unchanged, picture, tensors_of


def trained(info: OptimizerInfo, steps: int = 3, **options: Any) -> tuple[Any, Any]:
    tensors = problem()
    optimizer = build(info, [*tensors[:2]], **options)
    train(optimizer, *tensors, steps=steps)
    return optimizer, tensors


def twin_of(tensors: Any) -> list[Any]:
    return [*(Parameter(each.detach().clone()) for each in tensors[:2]), tensors[2]]


@each_input
def test_a_loaded_optimizer_goes_on_the_same(info: OptimizerInfo, given: Any) -> None:
    """Into another optimizer with other options, into itself, and from a file read with weights_only."""
    tensors = problem()
    optimizer = info.optim_cls([*tensors[:2]], **deepcopy(given.kwargs))
    train(optimizer, *tensors, steps=3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twins = twin_of(tensors)
    fresh = info.optim_cls(twins[:2], lr=0.5)
    fresh.load_state_dict(saved)
    optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
    assert fresh.param_groups[0]["params"][0] is twins[0]
    for _ in range(3):
        train(optimizer, *tensors)
        train(fresh, *twins)
        assert_same(tensors_of(fresh), tensors_of(optimizer))


@each_info
def test_the_state_dict_is_torchs(info: OptimizerInfo) -> None:
    """Numbers for parameters, steps as 0-dim float32 tensors, no tensors of parameters."""
    optimizer, tensors = trained(info)
    saved = optimizer.state_dict()
    assert saved.keys() == {"state", "param_groups"}
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1]]
    for number, slots in saved["state"].items():
        for name, value in slots.items():
            assert isinstance(value, Tensor), name
            assert value.shape == (() if name == "step" else tensors[number].shape)
            assert name != "step" or (value.dtype is torch.float32 and value.item() == 3)


@each_info
def test_saving_and_loading_share_no_more_than_torch_does(info: OptimizerInfo) -> None:
    """What is loaded is the optimizer's own; a later step does not change the dictionary that was loaded."""
    optimizer, tensors = trained(info)
    saved = deepcopy(optimizer.state_dict())
    kept = deepcopy(saved)
    optimizer.load_state_dict(saved)
    train(optimizer, *tensors, steps=2)
    for number, slots in kept["state"].items():
        for name, value in slots.items():
            assert torch.equal(saved["state"][number][name], value), name
    assert saved["param_groups"] == kept["param_groups"]


@each_info
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, None])
def test_steps_of_other_kinds_are_taken(info: OptimizerInfo, dtype: Any) -> None:
    """Older checkpoints have plain numbers or tensors of other types."""
    optimizer, tensors = trained(info)
    saved = deepcopy(optimizer.state_dict())
    for slots in saved["state"].values():
        if "step" in slots:
            slots["step"] = 3 if dtype is None else torch.tensor(3, dtype=dtype)
    twins = twin_of(tensors)
    fresh = build(info, twins[:2])
    fresh.load_state_dict(saved)
    train(optimizer, *tensors, steps=2)
    train(fresh, *twins, steps=2)
    assert_same(tensors_of(fresh), tensors_of(optimizer))


@each_info
def test_an_older_state_without_newer_options_is_taken(info: OptimizerInfo) -> None:
    """Options that came later (maximize, our own) have the optimizer's values then."""
    optimizer, tensors = trained(info)
    saved = deepcopy(optimizer.state_dict())
    for name in ("maximize", "rounding_seed", "max_grad_norm"):
        if name != "max_grad_norm" or "BertAdam" not in info.name:
            saved["param_groups"][0].pop(name, None)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["maximize"] is False
    train(optimizer, *tensors)


@each_info
def test_a_state_that_does_not_fit_is_refused(info: OptimizerInfo) -> None:
    optimizer, _ = trained(info)
    saved = optimizer.state_dict()
    before = picture(optimizer)
    fewer = {**saved, "param_groups": [{**saved["param_groups"][0], "params": [0]}]}
    for wrong in (fewer, {**saved, "param_groups": []}):
        with pytest.raises(ValueError, match="group"):
            optimizer.load_state_dict(deepcopy(wrong))
        assert_unchanged(optimizer, before)


@each_info
def test_parameters_without_a_state_yet(info: OptimizerInfo) -> None:
    """Saved before the first step, or where one parameter never had a gradient."""
    weight, bias, _ = problem()
    optimizer = build(info, [weight, bias])
    assert optimizer.state_dict()["state"] == {}
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    saved = optimizer.state_dict()
    assert list(saved["state"]) == [0]
    fresh = build(info, [*problem()[:2]])
    fresh.load_state_dict(saved)
    assert bias not in fresh.state and len(fresh.state) == 1


@each_info
def test_hooks_around_saving_and_loading(info: OptimizerInfo) -> None:
    """In order, with prepend; what a hook returns is used, None leaves the dictionary as it was."""
    optimizer, _ = trained(info)
    calls: list[str] = []

    def note(text: str, result: Any = None) -> Any:
        def hook(*args: Any) -> Any:
            calls.append(text)
            return result(args[-1]) if result else None

        return hook

    optimizer.register_state_dict_pre_hook(note("save 2"))
    optimizer.register_state_dict_pre_hook(note("save 1"), prepend=True)
    optimizer.register_state_dict_post_hook(note("saved 1", lambda d: {**d, "marked": 1}))
    optimizer.register_state_dict_post_hook(note("saved 2"))
    saved = optimizer.state_dict()
    assert saved["marked"] == 1 and calls == ["save 1", "save 2", "saved 1", "saved 2"]
    calls.clear()
    halve = {"param_groups": [{**saved["param_groups"][0], "lr": 0.5}]}
    optimizer.register_load_state_dict_pre_hook(note("load 2", lambda d: {**d, **halve}))
    optimizer.register_load_state_dict_pre_hook(note("load 1"), prepend=True)
    optimizer.register_load_state_dict_post_hook(note("loaded 2"))
    optimizer.register_load_state_dict_post_hook(note("loaded 1"), prepend=True)
    optimizer.load_state_dict(saved)
    assert calls == ["load 1", "load 2", "loaded 1", "loaded 2"]
    assert optimizer.param_groups[0]["lr"] == 0.5


@each_info
def test_a_post_hook_may_return_a_new_dictionary(info: OptimizerInfo) -> None:
    """Of another make, without ``state``; and hooks see the steps as they are saved."""
    optimizer, _ = trained(info)
    seen: list[Any] = []

    def wrap(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
        seen.extend(slots["step"] for slots in saved["state"].values() if "step" in slots)
        return {"wrapped": saved}

    optimizer.register_state_dict_post_hook(wrap)
    assert optimizer.state_dict().keys() == {"wrapped"}
    assert all(isinstance(step, Tensor) and step.item() == 3 for step in seen)


@each_info
def test_named_states_load_into_named_and_plain_ones(info: OptimizerInfo) -> None:
    """Names are saved and kept; without names on one side the numbers decide, as in torch."""
    weight, bias, data = problem()
    named = build(info, [("weight", weight), ("bias", bias)])
    train(named, weight, bias, data, steps=2)
    saved = named.state_dict()
    assert saved["param_groups"][0]["param_names"] == ["weight", "bias"]
    twins = twin_of((weight, bias, data))
    plain = build(info, twins[:2])
    plain.load_state_dict(saved)
    back = build(info, [("weight", twins[0]), ("bias", twins[1])])
    back.load_state_dict(plain.state_dict())
    train(named, weight, bias, data)
    train(back, *twins)
    assert_same(tensors_of(back), tensors_of(named))


@each_info
@pytest.mark.parametrize("place", ["parameter", "top"])
def test_what_the_user_keeps_in_the_state_is_kept(info: OptimizerInfo, place: str) -> None:
    """Torch saves and loads whatever is in ``state``: an average beside the moments, a counter of a script."""
    ours, tensors = trained(info)
    theirs = torch.optim.SGD([*twin_of(tensors)[:2]], lr=0.1)
    average = torch.full((10, 5), 2.0)
    for optimizer in (theirs, ours):
        first = optimizer.param_groups[0]["params"][0]
        if place == "top":
            optimizer.state["global_step"] = 7
        else:
            optimizer.state[first]["ema"] = average
        optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
        if place == "top":
            assert optimizer.state["global_step"] == 7
        else:
            assert torch.equal(optimizer.state[first]["ema"], average)
    train(ours, *tensors)
