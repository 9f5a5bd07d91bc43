"""The flat backend: the number of torch operators per step does not grow with the number of parameters."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cases import CASES, Case, Options, each_case, each_setting
from ingot import backends
from training import give_grads, make_params

LIMIT = 60
# The norm of all gradients, for max_grad_norm, which the three passes of AdamP and LAMB have no room for in 60.
NORM = 15


@pytest.fixture(autouse=True)
def no_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the flat backend is needed there is none; with it, norms would cost no operator."""
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")


class Counter(TorchDispatchMode):
    """Counts what reaches the dispatcher: every one of these is a call into a device's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "profiler":  # the labels torch.optim puts around a step
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def operators(case: Case, options: Options, tensors: int, backend: str = "flat") -> list[str]:
    """The operators of the third step over that many matrices."""
    params = make_params([(2 + i % 3, 3) for i in range(tensors)])
    optimizer = case.make(params, **options, backend=backend)
    for step in range(2):
        give_grads(params, step)
        optimizer.step()
    give_grads(params, 2)
    with Counter() as counter:
        optimizer.step()
    return counter.names


@each_case
def test_at_most_60_for_1000_tensors(case: Case) -> None:
    few, many = (operators(case, {}, tensors) for tensors in (10, 1000))
    assert many == few
    assert 0 < len(many) <= LIMIT


@each_setting
def test_the_same_for_10_and_for_100_with_any_options(case: Case, options: Options) -> None:
    few, many = (operators(case, options, tensors) for tensors in (10, 100))
    assert many == few
    extra = NORM if case.kind.spec.finish and "max_grad_norm" in options else 0
    assert 0 < len(many) <= LIMIT + extra


@each_case
def test_also_in_half_precision(case: Case) -> None:
    counts = []
    for tensors in (10, 200):
        params = make_params([(2, 3)] * tensors, torch.bfloat16)
        optimizer = case.make(params, backend="flat")
        for step in range(2):
            give_grads(params, step)
            optimizer.step()
        give_grads(params, 2)
        with Counter() as counter:
            optimizer.step()
        counts.append(len(counter.names))
    assert counts[0] == counts[1] <= LIMIT


def test_the_counter_counts() -> None:
    """The reference backend goes tensor by tensor: its count must grow, or this file measures nothing."""
    ten, twenty = (len(operators(CASES["adamw"], {}, n, "reference")) for n in (10, 20))
    assert twenty > 1.8 * ten > 18


@each_case
def test_gradients_that_moved_cost_nothing_more(case: Case) -> None:
    """New gradients in other places, as after zero_grad(set_to_none=True), are the usual case."""
    params = make_params([(2, 3)] * 50)
    optimizer = case.make(params, backend="flat")
    counts = []
    for step in range(4):
        give_grads(params, step)
        kept = [torch.empty_like(p) for p in params]  # so that the next gradients land elsewhere
        with Counter() as counter:
            optimizer.step()
        counts.append(len(counter.names))
        del kept
    assert counts[1] == counts[2] == counts[3] <= LIMIT


def test_clipping_in_place() -> None:
    counts = []
    for tensors in (10, 1000):
        params = make_params([(2, 3)] * tensors)
        optimizer = CASES["adamw"].make(params)
        give_grads(params, 0)
        with Counter() as counter:
            optimizer.clip_grad_norm_fused_(0.1)
        counts.append(len(counter.names))
    assert 3 < counts[0] == counts[1] <= 20
