"""States in host memory: what is still on its way is not used, and what was changed on the way is noticed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from npusim_paths import ROOT, Run
from offload_pairs import SHAPES, LateTransfer, assert_same_bits, give_both, make_pair, step, to_npu
from torch import Tensor

from cases import CASES, Case, each_case
from ingot.optimizer import FusedOptimizer
from ingot.step import transit
from ingot.storage import transfer
from ingot.storage.offload import Offload
from training import assert_unchanged, make_params, params_of, picture

ADAMW = CASES["adamw"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transit, "PIECE", 20)


def late(optimizer: FusedOptimizer) -> LateTransfer:
    """Give an optimizer a device whose copies come late and out of order."""
    offload = optimizer._offload
    assert isinstance(offload, Offload)
    offload.transfer = LateTransfer()
    return offload.transfer


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


def twice(param: Tensor) -> None:
    param.backward(torch.ones_like(param))


def edited(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(0.5)


def edited_unseen(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data.clamp_(-0.1, 0.1)


def one_element_unseen(param: Tensor) -> None:
    assert param.grad is not None
    if param.grad.numel():
        param.grad.data.view(-1)[-1:].add_(1e-3)


def signs_turned_unseen(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data.neg_()


def zeroed(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.zero_()


def replaced(param: Tensor) -> None:
    assert param.grad is not None
    param.grad = param.grad * 2


def replaced_in_place(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data = param.grad.data * 2


def removed(param: Tensor) -> None:
    param.grad = None


def parameter_edited(param: Tensor) -> None:
    param.data.mul_(0.5)


CHANGES = [
    twice,
    edited,
    edited_unseen,
    one_element_unseen,
    signs_turned_unseen,
    zeroed,
    replaced,
    replaced_in_place,
    removed,
    parameter_edited,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("slow", [False, True], ids=["done", "late"])
def test_changes_between_backward_and_step(change: Callable[[Tensor], None], slow: bool) -> None:
    away, near = make_pair(ADAMW, {"lr": 0.01})
    if slow:
        late(away)
    for number in range(3):
        give_both(away, near, number)
        for optimizer in (away, near):
            for param in params_of(optimizer)[number:]:
                change(param)
            optimizer.step()
    assert_same_bits(away, near)


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "fused"])
def test_clipping_in_place(ours: bool) -> None:
    away, near = make_pair(ADAMW, {"lr": 0.01})
    give_both(away, near, 0)
    norm = torch.nn.utils.get_total_norm([p.grad for p in params_of(near) if p.grad is not None])
    if ours:
        away.clip_grad_norm_fused_(0.5)
    else:
        torch.nn.utils.clip_grad_norm_(params_of(away), 0.5)
    away.step()
    for param in params_of(near):
        assert param.grad is not None
        param.grad.mul_(0.5 / norm)
    near.step()
    for one, two in zip(params_of(away), params_of(near), strict=True):
        torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-5, atol=1e-7)


def test_gradients_that_share_memory_with_parameters() -> None:
    whole = torch.ones(12, device="npu")
    views = [torch.nn.Parameter(whole[:8]), torch.nn.Parameter(whole[4:])]
    optimizer = ADAMW.make(views, offload="cpu")
    for view in views:
        view.grad = torch.ones_like(view)
    with pytest.raises(
        RuntimeError, match=r"parameter 0 of group 0: its param shares memory.*clone"
    ):
        optimizer.step()
    assert not optimizer.state and bool((whole == 1).all())


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
        twice(params[4])
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
