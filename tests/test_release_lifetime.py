"""The step inside backward: when gradients, handles and optimizers end, on which threads and streams updates run."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ingot.step.parcels import Parcel
from releasing import SHAPES, adamw, backward, train
from training import assert_same, make_params, tensors_of


def test_large_parameters_are_updated_and_freed_while_backward_runs() -> None:
    """Seen from hooks on the activations: the later layer is done before the gradient of the earlier one is made."""
    net = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
    before = [param.detach().clone() for param in net.parameters()]
    optimizer = adamw(net.parameters())
    optimizer.release_gradients()
    seen = []
    hidden = net[0](torch.randn(2, 200))
    hidden.register_hook(
        lambda _: seen.append(
            [bool((a != b).any()) for a, b in zip(before, net.parameters(), strict=True)]
        )
    )
    output = net[1](hidden)
    output.sum().backward()
    # The gradient of the hidden layer is computed with that of net[1].weight, which is updated next.
    assert seen[0][:2] == [False, False]
    assert all(bool((a != b).any()) for a, b in zip(before, net.parameters(), strict=True))


def test_at_most_one_large_gradient_is_alive() -> None:
    net = nn.Sequential(*(nn.Linear(150, 150, bias=False) for _ in range(6)))
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = []
    optimizer = adamw(net.parameters())

    def count(param: Tensor) -> None:  # called before the optimizer's own hook
        assert param.grad is not None
        alive.add(param.grad)
        most.append(len(alive))

    for param in net.parameters():
        param.register_post_accumulate_grad_hook(count)
    optimizer.release_gradients()
    net(torch.randn(2, 150)).sum().backward()
    assert most == [1] * 6


def test_a_parameter_that_left_the_optimizer_keeps_its_gradient() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    optimizer.release_gradients()
    gone = optimizer.param_groups[0]["params"].pop()
    backward(params, 0)
    assert gone.grad is not None
    assert all(param.grad is None for param in params[:-1])
    optimizer.step()
    assert gone not in optimizer.state


def test_parameters_behind_one_that_left_are_left_to_step() -> None:
    """Their ordinals are others now: none may be taken for its neighbour."""
    runs = []
    for releasing in (True, False):
        params = make_params(SHAPES)
        optimizer = adamw([{"params": params[:5]}, {"params": params[5:], "lr": 0.05}])
        if releasing:
            optimizer.release_gradients()
        train(optimizer, params, 3)
        del optimizer.param_groups[0]["params"][0]
        params[0].requires_grad_(False)
        for step in range(3, 6):
            optimizer.zero_grad()
            backward(params[1:], step)
            optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_removing_the_handle_brings_normal_steps_back() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="released already"):
        optimizer.release_gradients()
    train(optimizer, params, 3)
    handle.remove()
    handle.remove()
    backward(params, 3)
    assert all(param.grad is not None for param in params)
    optimizer.step()
    optimizer.zero_grad()
    with optimizer.release_gradients() as again:
        train(optimizer, params, 1, first=4)
    assert again is not handle and optimizer._released is None
    plain = make_params(SHAPES)
    other = adamw(plain)
    train(other, plain, 5)
    assert_same(tensors_of(optimizer), tensors_of(other))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_normal_optimizers(copied: Callable[[Any], Any]) -> None:
    params, plain = make_params(SHAPES), make_params(SHAPES)
    optimizer, expected = adamw(params), adamw(plain)
    optimizer.release_gradients()
    train(optimizer, params, 3)
    train(expected, plain, 4)
    other = copied(optimizer)
    theirs = other.all_params()
    backward(theirs, 3)
    assert other._released is None and all(param.grad is not None for param in theirs)
    other.step()
    assert_same(tensors_of(other), tensors_of(expected))
    train(optimizer, params, 1, first=3)
    assert_same(tensors_of(optimizer), tensors_of(expected))


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_nothing_lives_longer(steps: int) -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    train(optimizer, params, steps)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None
    backward(params, 0)  # the hooks are still there, and do nothing
    assert all(param.grad is not None for param in params)
    param, watcher = weakref.ref(params[0]), weakref.ref(handle)
    params.clear()
    assert param() is None
    handle.remove()
    del handle
    assert watcher() is None


def test_several_threads_may_go_backward_at_once() -> None:
    params = [make_params([(130, 130), (7,), (40, 40)], seed=seed) for seed in range(4)]
    plain = [make_params([(130, 130), (7,), (40, 40)], seed=seed) for seed in range(4)]
    optimizer = adamw([p for each in params for p in each])
    other = adamw([p for each in plain for p in each])
    optimizer.release_gradients()
    for step in range(4):
        threads = [threading.Thread(target=backward, args=(each, step)) for each in params]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in plain:
            backward(each, step)
        optimizer.step()
        other.step()
        other.zero_grad()
    assert_same(tensors_of(optimizer), tensors_of(other))


class FakeStream:
    """Remembers for whom it was told to wait."""

    def __init__(self) -> None:
        self.device, self.waited = torch.device("meta"), []  # type: ignore[var-annotated]

    def wait_stream(self, other: FakeStream) -> None:
        self.waited.append(other)


def test_small_gradients_made_on_other_streams_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update runs on the stream of the last gradient of its parcel."""
    one, two, three = (FakeStream() for _ in range(3))
    current = iter([one, two, one, three, three, three])
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: next(current))
    parcel = Parcel([4, 5, 6, 7])
    for ordinal in parcel.ordinals:
        parcel.add(ordinal, torch.device("meta"))
    current = iter([three] * 3)
    parcel.wait()
    assert three.waited == [one, two] and one.waited == two.waited == []
    parcel.clear()
    parcel.wait()
    assert parcel.arrived == [] and three.waited == [one, two]
