"""Ceilings on the bytes that a steady float32 step of the lists backend reads and writes, and on what it keeps."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import Parameter

from ingot import backends
from ingot.cli.bench.traffic_counter import Traffic, kept, measure
from ingot.optim import (
    NpuFusedAdadelta,
    NpuFusedAdam,
    NpuFusedAdamP,
    NpuFusedAdamW,
    NpuFusedBertAdam,
    NpuFusedLamb,
    NpuFusedRMSprop,
    NpuFusedRMSpropTF,
    NpuFusedSGD,
)
from ingot.optimizer import FusedOptimizer

Make = Callable[[list[Parameter]], FusedOptimizer]


def on_lists(kind: type, **options) -> Make:
    return lambda params: kind(params, lr=1e-3, backend="lists", **options)


# The make of an optimizer and the bytes per parameter that its step may move. An ideal AdamW would move 28.
CEILINGS = {
    "adamw": (on_lists(NpuFusedAdamW), 72),
    "sgd": (on_lists(NpuFusedSGD, momentum=0.9), 32),
    "adam": (on_lists(NpuFusedAdam, weight_decay=0.1), 76),
    "bert_adam": (on_lists(NpuFusedBertAdam, max_grad_norm=1.0), 97),
    "adadelta": (on_lists(NpuFusedAdadelta), 108),
    "rmsprop": (on_lists(NpuFusedRMSprop), 52),
    "rmsprop_tf": (on_lists(NpuFusedRMSpropTF), 52),
    "lamb": (on_lists(NpuFusedLamb, weight_decay=0.1), 109),
    "adamp": (on_lists(NpuFusedAdamP, weight_decay=0.1), 162),
}


@pytest.fixture(autouse=True)
def no_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the core, norms would cost no operator."""
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")


def make_params(count: int, shape: tuple[int, ...]) -> list[Parameter]:
    params = [Parameter(torch.randn(shape)) for _ in range(count)]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


@pytest.mark.parametrize("shape", [(256, 256), (16, 64)], ids=str)
@pytest.mark.parametrize("name", CEILINGS)
def test_bytes_per_parameter(name: str, shape: tuple[int, ...]) -> None:
    """Short rows cost AdamP 7 bytes more: the sums of a row are some numbers for its elements to bear."""
    make, ceiling = CEILINGS[name]
    params = make_params(8, shape)
    optimizer = make(params)
    traffic = measure(optimizer.step)
    elements = sum(param.numel() for param in params)
    least = 20  # read a gradient, read and write a parameter and a state
    assert least <= traffic.total / elements <= ceiling
    assert traffic.waits == 0
    limit = 8 if optimizer.spec.finish else 0
    assert kept(optimizer) / elements <= limit


def test_the_counter_counts() -> None:
    """By hand: two reads and a write, a write in place, a copy, a view, an expanded operand."""
    one, two = torch.ones(100), torch.ones(100)
    with Traffic() as traffic:
        three = one + two  # 800 read, 400 written
        three.mul_(2.0)  # 400, 400
        three.copy_(one)  # 400, 400
        three.view(10, 10).add_(torch.ones(()).expand(10, 10))  # 400 + 4, 400
    ones = 4 * 1  # torch.ones(()) writes one element, and fills it
    assert traffic.read == 2004
    assert traffic.written - 1600 in (ones, 2 * ones)
    assert traffic.calls["add"] == 1 and traffic.calls["mul_"] == 1


def test_the_counter_sees_waits() -> None:
    with Traffic() as traffic:
        float(torch.ones(1))
    assert traffic.waits == 1


def test_what_is_kept_is_found() -> None:
    params = make_params(3, (4, 5))
    optimizer = CEILINGS["adamp"][0](params)
    optimizer.step()
    assert 0 < kept(optimizer) < 10_000
    optimizer._planner.scratch["more"] = {"buffer": torch.empty(1000)}
    assert kept(optimizer) > 4000
