"""The quick path while options change between steps, and when a step is interrupted before it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from quick_steps import steady, whole_path
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from cases import CASES, Case, each_case
from ingot.optim import NpuFusedAdamW
from training import assert_same, make_params, set_grad, tensors_of, train


@each_case
def test_other_numbers_keep_it(case: Case) -> None:
    """As schedules set them: OneCycleLR moves betas or the momentum in every step."""
    runs = []
    for hook in (False, True):
        params = make_params([(7,), (4, 3)], torch.float32)
        optimizer = case.make(params, lr=0.02, weight_decay=0.01, max_grad_norm=1.0)
        train(whole_path(optimizer) if hook else optimizer, params, 5)
        taken = optimizer._quick
        for step in range(6):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 + step / 100
                group["weight_decay"] = 0.01 + step / 1000
                group["max_grad_norm"] = 1.0 + step / 10
            train(optimizer, params, 1)
            assert hook or optimizer._quick is taken
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_a_cycled_momentum_keeps_it() -> None:
    optimizer, param = steady()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
    train(optimizer, [param], 2)  # the schedule has added options of its own
    taken, seen = optimizer._quick, set()
    for _ in range(5):
        train(optimizer, [param], 1)
        schedule.step()
        seen.add(optimizer.param_groups[0]["betas"])
        assert optimizer._quick is taken
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("option", "value"), [("amsgrad", True), ("max_grad_norm", 0.1), ("lr", torch.tensor(0.2))]
)
def test_other_loops_leave_it(option: str, value: Any) -> None:
    """Options that change which states there are, whether gradients are measured, or that may change in place."""
    runs = []
    for hook in (False, True):
        optimizer, param = steady()
        taken = optimizer._quick
        if hook:
            whole_path(optimizer)
        optimizer.param_groups[0][option] = value
        train(optimizer, [param], 4)
        assert optimizer._quick is not taken
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@pytest.mark.parametrize(
    ("stem", "option"),
    [("sgd", "weight_decay"), ("sgd", "momentum"), ("adam", "weight_decay"), ("lamb", "lr")],
)
def test_a_tensor_changed_in_place_is_seen(stem: str, option: str) -> None:
    """Also where the change asks for another formula, as the first weight decay does."""
    runs = []
    for hook in (False, True):
        param = Parameter(torch.ones(3))
        optimizer = CASES[stem].make([param], **{"lr": 0.1, option: torch.tensor(0.0)})
        train(whole_path(optimizer) if hook else optimizer, [param], 4)
        assert hook or optimizer._quick is not None
        before = param.detach().clone()
        optimizer.param_groups[0][option].fill_(0.5)
        train(optimizer, [param], 4)
        runs.append(tensors_of(optimizer))
        assert not torch.equal(param, before)
    assert_same(*runs)


def test_a_list_changed_in_place_is_seen_inside_backward() -> None:
    param, betas = Parameter(torch.ones(3)), [0.9, 0.999]
    optimizer = NpuFusedAdamW([param], lr=0.1, betas=betas)
    with optimizer.release_gradients():
        for _ in range(5):
            param.square().sum().backward()
            optimizer.step()
        before = param.detach().clone()
        betas[0] = 7.0
        with pytest.raises(ValueError, match="betas"):
            param.square().sum().backward()
        assert torch.equal(param, before)


def test_what_a_user_keeps_in_a_group_is_not_looked_at() -> None:
    optimizer, param = steady()
    taken = optimizer._quick
    for step in range(3):
        optimizer.param_groups[0]["seen"] = [step]
        train(optimizer, [param], 1)
    assert optimizer._quick is taken


class Checked(NpuFusedAdamW):
    """Calls something whenever options are checked, as a signal handler may at any time."""

    on_check: Any = staticmethod(lambda: None)

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        super().check(group)
        cls.on_check()


def checked() -> tuple[Checked, Tensor]:
    param = Parameter(torch.ones(3))
    optimizer = Checked([param], lr=0.1)
    train(optimizer, [param], 4)
    assert optimizer._quick is not None
    return optimizer, param


class OutOfTime(RuntimeError):
    """What a signal handler may raise."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OutOfTime])
def test_an_interrupt_is_not_lost(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the quick path reads: raised, nothing was changed, and the next step reads everything again."""
    optimizer, param = checked()
    before = param.detach().clone()

    def interrupt() -> None:
        raise kind

    monkeypatch.setattr(Checked, "on_check", staticmethod(interrupt))
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(kind):
        optimizer.step()
    assert torch.equal(param, before) and optimizer.state[param]["step"] == 4
    monkeypatch.undo()
    optimizer.step()
    assert not torch.equal(param, before) and optimizer.state[param]["step"] == 5
    assert "max_exp_avg_sq" in optimizer.state[param]


class InterruptedAt(TorchFunctionMode):
    """Ctrl-C in the moment in which torch is asked something."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") == self.name:
            raise KeyboardInterrupt
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("path", ["quick", "whole"])
def test_an_interrupt_within_torch_is_not_lost(path: str) -> None:
    """Each tensor of one element is asked whether it is a lazily negated view."""
    param = Parameter(torch.ones(1))
    optimizer = NpuFusedAdamW([param], lr=0.1)
    train(optimizer, [param], 4)
    if path == "whole":
        whole_path(optimizer)
    before = param.detach().clone()
    with InterruptedAt("is_neg"), pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert torch.equal(param, before) and optimizer.state[param]["step"] == 4
    optimizer.step()
    assert optimizer.state[param]["step"] == 5


def test_a_step_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made while the outer one reads: it comes first, and both are made."""
    optimizer, param = checked()
    other, expected = checked()
    set_grad(param, torch.ones(3))
    set_grad(expected, torch.ones(3))

    def step() -> None:
        monkeypatch.undo()
        optimizer.step()

    monkeypatch.setattr(Checked, "on_check", staticmethod(step))
    optimizer.param_groups[0]["eps"] = other.param_groups[0]["eps"] = 1e-7
    optimizer.step()
    other.step()
    other.step()
    assert optimizer.state[param]["step"] == 6
    assert_same(tensors_of(optimizer), tensors_of(other))


def test_zero_grad_of_a_group_that_is_no_list() -> None:
    optimizer, param = steady()
    optimizer.param_groups[0]["params"] = (param,)
    optimizer.zero_grad()
    assert param.grad is None
