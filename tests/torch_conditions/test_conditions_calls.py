"""PyTorch's conditions: hooks of every kind, closures, references that die, the profiler."""

import gc
import weakref
from typing import Any

import pytest
import torch
from conditions import build, each_info, loss_of, problem, train
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_optimizers import OptimizerInfo

from cases import each_backend
from training import assert_same, assert_unchanged, picture, tensors_of


@each_info
def test_hooks_of_every_kind_in_order(info: OptimizerInfo) -> None:
    """Global before local, before the step and after it; a removed hook is silent."""
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    calls: list[str] = []

    def note(text: str) -> Any:
        return lambda *_: calls.append(text)

    handles = [
        register_optimizer_step_pre_hook(note("global before")),
        register_optimizer_step_post_hook(note("global after")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    try:
        train(optimizer, weight, bias, data)
        expected = ["global before", "before", "after", "global after"]
        assert sorted(calls) == sorted(expected)
        assert calls.index("before") < calls.index("after")
        assert calls[:2] == expected[:2]
    finally:
        for handle in handles:
            handle.remove()
    train(optimizer, weight, bias, data)
    assert len(calls) == 4


@each_info
def test_hooks_see_what_step_was_called_with(info: OptimizerInfo) -> None:
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    seen: list[Any] = []
    optimizer.register_step_post_hook(lambda o, args, kwargs: seen.append((o, args, kwargs)))

    def closure() -> Tensor:
        return loss_of(weight, bias, data)

    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert [o is optimizer for o, _, _ in seen] == [True, True]
    assert seen[0][1][-1] is closure and seen[1][2]["closure"] is closure


@each_info
def test_a_pre_hook_may_exchange_the_arguments(info: OptimizerInfo) -> None:
    weight, bias, _ = problem()
    optimizer = build(info, [weight, bias])
    used: list[str] = []
    optimizer.register_step_pre_hook(
        lambda o, args, kwargs: ((args[0], lambda: used.append("second")), kwargs)
    )
    optimizer.step(lambda: used.append("first"))
    assert used == ["second"]
    optimizer.register_step_pre_hook(lambda *_: "nonsense")
    with pytest.raises(RuntimeError, match="must return None or a tuple"):
        optimizer.step(lambda: None)


def refuse(*_: Any) -> None:
    raise KeyError("no")


@each_info
@each_backend
def test_a_pre_hook_that_raises_changes_nothing(info: OptimizerInfo, backend: str) -> None:
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias], backend=backend)
    train(optimizer, weight, bias, data)

    handle = optimizer.register_step_pre_hook(refuse)
    before = picture(optimizer)
    with pytest.raises(KeyError):
        optimizer.step()
    assert_unchanged(optimizer, before)
    handle.remove()
    train(optimizer, weight, bias, data)


@each_info
@each_backend
def test_a_pre_hook_that_raises_leaves_no_scale_behind(info: OptimizerInfo, backend: str) -> None:
    """GradScaler hands its scale over before the hooks run; a later step must not find it."""
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias], backend=backend)
    train(optimizer, weight, bias, data)

    optimizer.register_step_pre_hook(refuse)
    before = picture(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    with pytest.raises(KeyError):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    assert_unchanged(optimizer, before)


@each_info
def test_closures(info: OptimizerInfo) -> None:
    """With gradients enabled, before anything else, called once; whatever it returns comes back."""
    weight, bias, data = problem()
    twins = problem()
    one, other = build(info, [weight, bias]), build(info, [*twins[:2]])
    for _ in range(3):
        enabled: list[bool] = []

        def closure(enabled: list[bool] = enabled) -> Tensor:
            enabled.append(torch.is_grad_enabled())
            one.zero_grad()
            loss = loss_of(weight, bias, data)
            loss.backward()
            return loss

        with torch.no_grad():
            loss = one.step(closure)
        assert enabled == [True]
        assert loss.item() == train(other, *twins)[0]
    assert_same(tensors_of(one), tensors_of(other))
    marker = object()
    assert one.step(lambda: marker) is marker
    assert one.step() is None


@each_info
def test_a_closure_that_raises_changes_nothing(info: OptimizerInfo) -> None:
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    train(optimizer, weight, bias, data, steps=2)
    before = picture(optimizer)

    def closure() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(closure)
    assert_unchanged(optimizer, before)
    assert torch.is_grad_enabled()


@each_info
@each_backend
def test_no_cyclic_references(info: OptimizerInfo, backend: str) -> None:
    """The last reference gone, the optimizer is gone, without a garbage collection; and so are its tensors."""
    param = Parameter(torch.ones(4, 3))
    optimizer = build(info, [param], backend=backend)
    for _ in range(2):
        param.grad = torch.ones(4, 3)
        optimizer.step()
    parts = [value for value in optimizer.state[param].values() if isinstance(value, Tensor)]
    watched = [weakref.ref(each) for each in (optimizer, param, *parts)]
    gc.disable()
    try:
        del optimizer, param, parts
        assert [reference() for reference in watched] == [None] * len(watched)
    finally:
        gc.enable()


@each_info
@each_backend
def test_what_the_user_drops_is_gone(info: OptimizerInfo, backend: str) -> None:
    """States after state.clear(), parameters after param_groups.clear(): at once."""
    param = Parameter(torch.ones(4, 3))
    optimizer = build(info, [param], backend=backend)
    for _ in range(4):
        param.grad = torch.ones(4, 3)
        optimizer.step()
    states = [weakref.ref(v) for v in optimizer.state[param].values() if isinstance(v, Tensor)]
    watched = weakref.ref(param)
    gc.disable()
    try:
        optimizer.state.clear()
        assert states and [reference() for reference in states] == [None] * len(states)
        optimizer.param_groups.clear()
        del param
        assert watched() is None
    finally:
        gc.enable()


@each_info
def test_the_profiler_names_step_and_zero_grad(info: OptimizerInfo) -> None:
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(optimizer, weight, bias, data)
    names = {event.name for event in profile.events()}
    assert {
        f"Optimizer.step#{info.name}.step",
        f"Optimizer.zero_grad#{info.name}.zero_grad",
    } <= names


@each_info
def test_schedulers_see_that_step_was_called(info: OptimizerInfo) -> None:
    """A scheduler wraps step; calling it first warns, as with torch's own."""
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()
    train(optimizer, weight, bias, data)
