"""Who stands around a scaled step: hooks that fail, and callers that watch whether step() is called."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import Case, each_backend, each_case
from training import assert_unchanged, make_params, picture, with_state


def scaled_backward(scaler: torch.amp.GradScaler, params: list[Tensor], factor: float) -> None:
    for param in params:
        param.grad = None
    scaler.scale(sum((param * factor).sum() for param in params)).backward()


class Stop(Exception):
    """What a hook raises."""


def fail(*args: Any) -> None:
    raise Stop


HOOKS = {
    "before": lambda optimizer: optimizer.register_step_pre_hook(fail),
    "after": lambda optimizer: optimizer.register_step_post_hook(fail),
}


@pytest.mark.parametrize("hook", HOOKS)
@each_backend
@each_case
def test_a_failing_hook_leaves_no_scale_behind(case: Case, backend: str, hook: str) -> None:
    """The next step without a scaler takes its gradients as they are."""
    params, others = make_params([(3,), (2, 2)]), make_params([(3,), (2, 2)])
    optimizer = with_state(case, params, backend=backend)
    expected = with_state(case, others, backend=backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_backward(scaler, params, 2.0)
    handle = HOOKS[hook](optimizer)
    with pytest.raises(Stop):
        scaler.step(optimizer)
    handle.remove()
    assert not {"found_inf", "grad_scale"} & vars(optimizer).keys()
    for each in params, others:
        for param in each:
            param.grad = torch.full_like(param, 0.5)
    if hook == "after":  # the step itself was made
        for param in others:
            param.grad = torch.full_like(param, 2.0)
        expected.step()
        for param in others:
            param.grad = torch.full_like(param, 0.5)
    optimizer.step()
    expected.step()
    for one, two in zip(params, others, strict=True):
        assert torch.equal(one, two)


class Watcher:
    """Replaces ``step`` to learn whether GradScaler calls it: how Accelerate finds out that a step was skipped."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.called = False
        self.original = optimizer.step
        optimizer.step = self.step  # type: ignore[method-assign]

    def step(self, *args: Any, **options: Any) -> Any:
        self.called = True
        return self.original(*args, **options)


@each_backend
@each_case
def test_a_scaler_that_skips_by_itself(case: Case, backend: str) -> None:
    """The remedy of docs/precision.md: the same numbers, and no call of step() after an overflow."""
    params, others = make_params([(3,), (2, 2)]), make_params([(3,), (2, 2)])
    optimizer = with_state(case, params, backend=backend)
    optimizer._step_supports_amp_scaling = False
    fused = with_state(case, others, backend=backend)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    watcher = Watcher(optimizer)
    for factor in (2.0, float("inf"), 0.5):
        before = picture(optimizer)
        watcher.called = False
        for scaler, each, its in zip(scalers, (optimizer, fused), (params, others), strict=True):
            scaled_backward(scaler, its, factor)
            scaler.step(each)
            scaler.update()
        assert watcher.called == (factor < 3)
        if not watcher.called:
            after = {**before, "grads": picture(optimizer)["grads"]}
            assert_unchanged(optimizer, after)
        for one, two in zip(params, others, strict=True):
            assert torch.equal(one, two)
