"""The lists backend: the number of torch operators per step does not grow with the number of parameters."""

from collections import Counter

import pytest
import torch

from cases import CASES, Case, Options, each_case, each_setting
from ingot import backends
from ingot.cli.bench.traffic_counter import Traffic
from training import give_grads, make_params

ELEMENTWISE, TWO_PASS = 16, 60
# The norm of all gradients and their scaling, on top where max_grad_norm is a further option.
NORM = 8


@pytest.fixture(autouse=True)
def no_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lists backend is needed there is none; with it, norms would cost no operator."""
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")


def limit(case: Case, options: Options) -> int:
    """The operators a step may have; BertAdam, whose formula clips, has no more than others (with amsgrad, one)."""
    one, usual = (
        case.kind.spec.clips(case.make(make_params([(1,)]), **each).param_groups[0])
        for each in (options, {})
    )
    most = (
        TWO_PASS if case.kind.spec.finish else ELEMENTWISE + bool(usual and options.get("amsgrad"))
    )
    return most + (NORM if one and not usual else 0)


def operators(case: Case, options: Options, tensors: int, backend: str = "lists") -> Counter[str]:
    """The operators of the third step over that many matrices, without views, which launch nothing."""
    params = make_params([(2 + i % 3, 3) for i in range(tensors)])
    optimizer = case.make(params, **options, backend=backend)
    for step in range(2):
        give_grads(params, step)
        optimizer.step()
    give_grads(params, 2)
    with Traffic() as traffic:
        optimizer.step()
    return traffic.calls


@each_case
def test_the_same_for_10_and_for_1000_tensors(case: Case) -> None:
    few, many = (operators(case, {}, tensors) for tensors in (10, 1000))
    assert many == few
    assert 0 < many.total() <= limit(case, {})


@each_setting
def test_the_same_for_10_and_for_100_with_any_options(case: Case, options: Options) -> None:
    few, many = (operators(case, options, tensors) for tensors in (10, 100))
    assert many == few
    assert 0 < many.total() <= limit(case, options)


@each_case
def test_also_in_half_precision(case: Case) -> None:
    counts = []
    for tensors in (10, 200):
        params = make_params([(2, 3)] * tensors, torch.bfloat16)
        optimizer = case.make(params, backend="lists")
        for step in range(2):
            give_grads(params, step)
            optimizer.step()
        give_grads(params, 2)
        with Traffic() as traffic:
            optimizer.step()
        counts.append(traffic.operators)
    assert counts[0] == counts[1] <= TWO_PASS


def test_the_counter_counts() -> None:
    """The reference backend goes tensor by tensor: its count must grow, or this file measures nothing."""
    ten, twenty = (operators(CASES["adamw"], {}, n, "reference").total() for n in (10, 20))
    assert twenty > 1.8 * ten > 18


@each_case
def test_gradients_that_moved_cost_nothing_more(case: Case) -> None:
    """New gradients in other places, as after zero_grad(set_to_none=True), are the usual case."""
    params = make_params([(2, 3)] * 50)
    optimizer = case.make(params, backend="lists")
    counts = []
    for step in range(4):
        give_grads(params, step)
        kept = [torch.empty_like(p) for p in params]  # so that the next gradients land elsewhere
        with Traffic() as traffic:
            optimizer.step()
        counts.append(traffic.operators)
        del kept
    assert counts[1] == counts[2] == counts[3] <= TWO_PASS


def test_clipping_in_place() -> None:
    counts = []
    for tensors in (10, 1000):
        params = make_params([(2, 3)] * tensors)
        optimizer = CASES["adamw"].make(params)
        give_grads(params, 0)
        with Traffic() as traffic:
            optimizer.clip_grad_norm_fused_(0.1)
        counts.append(traffic.operators)
    assert 3 < counts[0] == counts[1] <= 20
