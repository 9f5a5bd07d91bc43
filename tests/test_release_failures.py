"""The step inside backward when a backward pass or an update fails, or a graph is used twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from releasing import SHAPES, adamw, backward, train
from training import assert_same, make_params, tensors_of


def test_a_matrix_used_in_two_reentrant_checkpoints_is_refused() -> None:
    """Autograd runs a backward of its own for each: the first gradient is not complete."""
    layer = nn.Linear(4, 4)
    optimizer = adamw(layer.parameters())
    x = torch.randn(2, 4, requires_grad=True)
    with optimizer.release_gradients() as handle:
        y = checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True)
        with pytest.raises(RuntimeError, match=r"a second gradient.*use_reentrant=False"):
            y.sum().backward()
        handle.discard()
        y = checkpoint(layer, checkpoint(layer, x, use_reentrant=False), use_reentrant=False)
        y.sum().backward()
        optimizer.step()


def test_a_second_backward_is_refused_and_nothing_is_updated_by_it() -> None:
    params = make_params(SHAPES)
    optimizer = adamw([(f"p{i}", p) for i, p in enumerate(params)])
    handle = optimizer.release_gradients()
    backward(params, 0)
    assert len(handle.updated) == len(params) and handle.waiting == []
    before = {name: value.clone() for name, value in tensors_of(optimizer).items()}
    with pytest.raises(RuntimeError, match=r"parameter \d 'p\d' of group 0: a second gradient"):
        backward(params, 1)
    with pytest.raises(RuntimeError, match="did not finish"):
        optimizer.step()
    assert_same(tensors_of(optimizer), before)
    handle.discard()
    train(optimizer, params, 2)


class Fails(torch.autograd.Function):
    """Passes its input on, and fails in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise OSError("no")


def test_a_failed_backward_says_what_was_updated() -> None:
    names = ["early.weight", "early.bias", "late.weight", "late.bias"]
    early, late = nn.Linear(150, 150), nn.Linear(150, 150)
    params = [*early.parameters(), *late.parameters()]
    before = [param.detach().clone() for param in params]
    optimizer = adamw(list(zip(names, params, strict=True)))
    handle = optimizer.release_gradients()
    x = torch.randn(2, 150)
    with pytest.raises(OSError, match="no"):
        late(Fails.apply(early(x))).sum().backward()
    assert handle.updated == ["parameter 2 'late.weight' of group 0"]
    assert handle.waiting == ["parameter 3 'late.bias' of group 0"]
    changed = [bool((a != b).any()) for a, b in zip(before, params, strict=True)]
    assert changed == [False, False, True, False]
    told = r"did not finish: 1 of 4 parameters were updated \(.*late.weight.*\); 1 more .*late.bias.*discard\(\)"
    with pytest.raises(RuntimeError, match=told):
        optimizer.step()
    with pytest.raises(RuntimeError, match=told):
        late(early(x)).sum().backward()
    handle.discard()
    assert handle.updated == handle.waiting == []
    late(early(x)).sum().backward()
    optimizer.step()
    steps = [int(optimizer.state[param]["step"]) for param in params]
    assert steps == [1, 1, 2, 1]


def test_an_update_that_fails_leaves_the_others_right() -> None:
    params = [Parameter(torch.randn(130, 130)), Parameter(torch.randn(130, 130))]
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    optimizer.state[params[0]]["exp_avg"] = torch.zeros(3)
    before = params[0].detach().clone()
    with pytest.raises(RuntimeError, match="its state exp_avg is"):
        (params[0].tanh() @ params[1]).sum().backward()
    assert torch.equal(params[0], before) and params[0].grad is not None
    assert handle.waiting == ["parameter 0 of group 0"]
    del optimizer.state[params[0]]
    handle.discard()
    train(optimizer, params, 2)


def test_retain_graph_and_nested_backward() -> None:
    """A graph that is used again after an update is out of date, and autograd says so."""
    layer = nn.Linear(150, 150)
    optimizer = adamw(layer.parameters())
    optimizer.release_gradients()
    loss = layer(layer(torch.randn(2, 150))).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.zero_grad()

    # A backward of its own inside a backward hook, over other parameters of the same optimizer.
    inner = Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [inner]})
    x = torch.randn(2, 150, requires_grad=True)

    def nested(_: Tensor) -> None:
        with torch.enable_grad():
            (inner * 2).sum().backward()

    x.register_hook(nested)
    layer(x).sum().backward()
    optimizer.step()
    assert not torch.equal(inner, torch.ones(3))
    assert [int(optimizer.state[p]["step"]) for p in (*layer.parameters(), inner)] == [2, 2, 1]
