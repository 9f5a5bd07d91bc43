"""States in host memory: what is still on its way is not used, streams are waited for, nothing is kept too long."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from npusim_paths import ROOT, Run
from offload_pairs import (
    ADAMW,
    SHAPES,
    LateTransfer,
    assert_same_bits,
    give_both,
    late,
    make_pair,
    step,
    to_npu,
)
from torch import Tensor

from cases import Case, each_case
from ingot.storage import transfer
from training import assert_unchanged, make_params, picture

pytestmark = pytest.mark.usefixtures("small_pieces")


@each_case
@pytest.mark.parametrize("clip", [{}, {"max_grad_norm": 0.5}], ids=["", "clipped"])
def test_late_copies(case: Case, clip: dict[str, float]) -> None:
    """Every buffer is NaN until its copy is waited for, so that whoever looks too early computes NaN."""
    away, near = make_pair(case, {"lr": 0.01, **clip})
    device = late(away)
    for number in range(4):
        step(away, near, number)
        assert not device.waiting  # what the device does next finds all parameters
    assert_same_bits(away, near)


def test_updates_overlap_with_copies() -> None:
    away, near = make_pair(ADAMW, {"lr": 0.01})
    step(away, near, 0)
    device = late(away)
    give_both(away, near, 1)
    fetched = device.log.count("fetch")
    assert fetched == len(SHAPES)  # every gradient was on its way before step() was called
    away.step()
    assert device.log.count("fetch") == 2 * fetched  # parameters; no gradient a second time
    first, last = device.log.index("send"), len(device.log) - device.log[::-1].index("wait")
    assert first < last  # the first parameters went back before the last ones were waited for
    assert device.log[-1] == "settle"


class FailingTransfer(LateTransfer):
    """Has memory for so many buffers."""

    left = 0

    def buffer(self, like: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("no pinned memory left")
        return super().buffer(like)


@each_case
@pytest.mark.parametrize("left", [0, 3, 2 * len(SHAPES) - 1])
@pytest.mark.parametrize("steps", [0, 1])
def test_no_memory_for_buffers(case: Case, left: int, steps: int) -> None:
    """Backward goes on without early copies; the step says so, and has changed nothing."""
    away, near = make_pair(case, {"lr": 0.01})
    for number in range(steps):
        step(away, near, number)
    assert away._offload is not None
    away._offload.mirrors.clear()
    away._offload.transfer = device = FailingTransfer()
    device.left = left
    give_both(away, near, steps)
    before = picture(away)
    with pytest.raises(torch.OutOfMemoryError, match="no pinned memory"):
        away.step()
    assert_unchanged(away, before)
    device.left = 100
    away.step()
    near.step()
    assert_same_bits(away, near)


def test_nothing_lives_longer_than_it_should() -> None:
    gc.collect()
    gc.disable()
    try:
        params = to_npu(make_params(SHAPES))
        optimizer = ADAMW.make(params, offload="cpu")
        for _ in range(2):
            for param in params:
                param.backward(torch.ones_like(param))
            optimizer.step()
        grad = weakref.ref(params[4].grad)  # type: ignore[arg-type]
        optimizer.zero_grad()
        assert grad() is None
        hooks = params[4]._post_accumulate_grad_hooks
        assert len(hooks) == 1
        gone = weakref.ref(optimizer._offload)  # type: ignore[arg-type]
        del optimizer
        assert gone() is None
        assert not hooks  # an optimizer leaves nothing behind
        other = ADAMW.make(params, offload="cpu")
        params[4].backward(torch.ones_like(params[4]))
        other.step()
        seen = weakref.ref(params[4])
        other.param_groups.clear()
        other.state.clear()
        params.clear()
        del param
        assert seen() is None
    finally:
        gc.enable()


def test_hooks_follow_the_groups() -> None:
    one, two = to_npu(make_params([(3,), (4,)]))
    optimizer = ADAMW.make([one], offload="cpu")
    optimizer.add_param_group({"params": [two]})
    assert len(one._post_accumulate_grad_hooks) == len(two._post_accumulate_grad_hooks) == 1
    optimizer.param_groups.pop()
    optimizer.step()
    assert len(one._post_accumulate_grad_hooks) == 1
    assert not two._post_accumulate_grad_hooks


class FakeStream:
    """A stream that notes what it is asked for."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *exception: object) -> None:
        self.log.append(f"off {self.name}")

    def record_event(self) -> FakeEvent:
        self.log.append(f"event of {self.name}")
        return FakeEvent(self.log)


class FakeEvent:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.log.append("host waits")


def test_what_streams_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies come after the computation before them and before the computation after them."""
    log: list[str] = []
    monkeypatch.setattr(torch, "Stream", lambda device: FakeStream(log, "copies"))
    monkeypatch.setattr(
        torch.accelerator, "current_stream", lambda device: FakeStream(log, "computation")
    )
    copies = transfer.StreamTransfer()
    param, buffer = torch.ones(3, device="npu"), torch.zeros(3)
    copies._stream(param.device)
    log.clear()
    ticket = copies.fetch(param, buffer)
    assert log == ["copies waits for computation", "on copies", "off copies", "event of copies"]
    copies.wait(ticket)
    assert log.pop() == "host waits"
    assert buffer.equal(torch.ones(3))
    log.clear()
    copies.send(buffer * 2, param)
    assert log == ["copies waits for computation", "on copies", "off copies"]
    copies.settle(param.device)
    assert log.pop() == "computation waits for copies"
    assert param.cpu().equal(torch.full((3,), 2.0))


def test_a_device_whose_events_cannot_be_waited_for_gets_ordinary_copies() -> None:
    assert transfer.new_stream(torch.device("npu:0")) is None  # the simulated one
    copies = transfer.StreamTransfer()
    buffer = copies.buffer(torch.ones(3, device="npu"))
    assert copies.fetch(torch.ones(3, device="npu"), buffer) is None
    assert buffer.equal(torch.ones(3))


def test_the_example(run: Run) -> None:
    """On the CPU and on the simulated NPU, as its text says."""
    example = str(ROOT / "examples" / "offload.py")
    cpu, npu = run(example).stdout, run("-m", "ingot.npusim", example).stdout
    states = "states: {'exp_avg': 'cpu', 'exp_avg_sq': 'cpu', 'master_param': 'cpu'}"
    assert cpu.splitlines()[-1] == f"parameters on cpu, {states}"
    assert npu.splitlines()[-1] == f"parameters on npu, {states}"
    assert len(npu.splitlines()) == 4
