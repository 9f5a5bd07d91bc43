"""Options that a script writes into a group after construction are checked by the next step."""

from typing import Any

import numpy as np
import pytest
import torch

from cases import Case, each_backend, each_case
from ingot.optim import NpuFusedAdamW
from training import assert_unchanged, make_params, picture, train, with_state

SHAPES = [(3, 2), (4,), (5, 2), (6,)]


def nonsense_for(case: Case, group: dict[str, Any]) -> dict[str, list[Any]]:
    """Values that each option of a group must not have."""
    nonsense: dict[str, list[Any]] = {
        "rounding_seed": [-1, 1.5, "7", True, None, 2**64],
        "max_grad_norm": [float("nan"), "1", [1.0]],
        "maximize": ["yes", 2, None],
        "lr": ["0.1", None, -1.0, float("nan"), 10**400, torch.ones(2), 1j],
        "param_names": [["a", "b"], "names", [1]],
    }
    for name in case.kind.rules:
        nonsense.setdefault(name, [object(), "nonsense"])
    if "betas" in group:
        nonsense["betas"] = [(0.9, 0.9, 0.9), 0.9, "ab", ("0.9", 0.9), None, (0.9, 1.0)]
    return nonsense


@each_backend
@each_case
@pytest.mark.parametrize("steps", [1, 4])  # after four, the native backend takes the quick path
def test_an_option_set_to_nonsense_later_is_refused(case: Case, backend: str, steps: int) -> None:
    """Options are checked when given; what a script writes into a group afterwards can still be nonsense."""
    params = make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, steps)
    group = optimizer.param_groups[0]
    before = picture(optimizer)
    good = dict(group)
    for name, values in nonsense_for(case, good).items():
        for value in values:
            group[name] = value
            with pytest.raises(ValueError, match="beta" if name == "betas" else name):
                optimizer.step()
            group.clear()
            group.update(good)
    for name in {**case.kind.rules, "maximize": 0, "max_grad_norm": 0, "rounding_seed": 0}:
        del group[name]
        with pytest.raises(ValueError, match=f"must have .*{name}"):
            optimizer.step()
        group.clear()
        group.update(good)
    assert_unchanged(optimizer, before)
    train(optimizer, params, 1, first=steps)


@each_backend
@each_case
@pytest.mark.parametrize("steps", [1, 4])
def test_an_option_changed_in_place_is_checked_again(case: Case, backend: str, steps: int) -> None:
    """The value of a tensor, or an entry of a list, changes without a new object in the group."""
    params = make_params(SHAPES)
    optimizer = with_state(case, params, backend=backend)
    group = optimizer.param_groups[0]
    group["lr"] = torch.tensor(0.02)
    if "betas" in group:
        group["betas"] = [torch.tensor(0.9), 0.99]
    train(optimizer, params, steps)
    before = picture(optimizer)
    with pytest.raises(ValueError, match="lr"):
        group["lr"].fill_(-1.0)
        optimizer.step()
    group["lr"].fill_(0.02)
    if "betas" in group:
        changes = [lambda b: b.__setitem__(1, 5.0), list.clear]
        for change in changes if isinstance(group["betas"], list) else []:
            change(group["betas"])
            with pytest.raises(ValueError, match="betas"):
                optimizer.step()
            group["betas"][:] = [torch.tensor(0.9), 0.99]
    assert_unchanged(optimizer, before)
    train(optimizer, params, 1, first=steps)


@each_backend
@pytest.mark.parametrize("steps", [1, 4])
def test_a_rate_changed_in_place_is_looked_at(backend: str, steps: int) -> None:
    """A tensor or an array of numpy is the same object before and after."""
    for rate in (torch.tensor(0.1), np.array(0.1)):
        params = make_params(SHAPES)
        optimizer = NpuFusedAdamW(params, lr=rate, backend=backend)
        train(optimizer, params, steps)
        before = picture(optimizer)
        rate[()] = -5.0
        with pytest.raises(ValueError, match="lr must be"):
            optimizer.step()
        rate[()] = 0.1
        assert_unchanged(optimizer, before)
