"""Norms and overflows over several processes, on a device that is not known to have float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from ingot.optim import NpuFusedAdamW
from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params

CPU, NPU = "cpu", "npu:0"
NORM_TYPES = (2.0, 3.0, torch.inf)


@pytest.fixture
def world() -> Iterator[Any]:
    """A process group of this process alone."""
    dist.init_process_group("hccl", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


class NoDoubles(TorchDispatchMode):
    """As a device without float64: a tensor of that type there is an error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operator comes by here."""
        result = func(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(result):
            if isinstance(each, Tensor) and each.device.type == "npu":
                assert each.dtype is not torch.float64, func
        return result


def model_on(device: str, *, wide: bool = False) -> nn.Module:
    """A model of two parameters."""
    params = make_params([(4, 3), (5,)], torch.float64 if wide else torch.float32)
    return nn.ParameterList(params).to(device)


def optimizer_of(model: nn.Module, group: Any) -> FusedOptimizer:
    """One that clips by the norm over a process group."""
    optimizer = NpuFusedAdamW(model.parameters(), lr=0.1, max_grad_norm=0.1)
    optimizer.norm_group = group
    return optimizer


def grads_for(model: nn.Module, step: int) -> None:
    """The same gradients on every device."""
    params = [*model.parameters()]
    copies = [nn.Parameter(param.detach().cpu()) for param in params]
    give_grads(copies, step)
    for param, copy in zip(params, copies, strict=True):
        assert copy.grad is not None
        param.grad = copy.grad.to(param.device)


def norms(model: nn.Module, optimizer: FusedOptimizer, step: int) -> list[float]:
    """The norm by which a step clips, and those of gradients that are clipped in place."""
    grads_for(model, step)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf
    assert optimizer.grad_norm is not None
    found = [float(optimizer.grad_norm)]
    for norm_type in NORM_TYPES:
        grads_for(model, step)
        found.append(float(optimizer.clip_grad_norm_fused_(0.5, norm_type)))
    return found


def test_nothing_is_made_in_float64_on_the_device(world: Any) -> None:
    near, away = model_on(CPU), model_on(NPU)
    expected, ours = optimizer_of(near, None), optimizer_of(away, world)
    for step in range(2):
        with NoDoubles():
            found = norms(away, ours, step)
        assert found == pytest.approx(norms(near, expected, step), rel=1e-6)


@pytest.fixture
def swapping() -> Iterator[None]:
    """``model.to()`` keeps its parameters the same objects, as it always does from the CPU to CUDA and back."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("start", [CPU, NPU])
def test_a_model_may_move_between_steps(world: Any, swapping: None, start: str) -> None:
    """Sums are made where the parameters are now, and in a type that this device has."""
    model, copy = model_on(start), model_on(CPU)
    ours, expected = optimizer_of(model, world), optimizer_of(copy, None)
    for step, device in enumerate([start, NPU, CPU, NPU]):
        model.to(device)
        assert [*map(id, model.parameters())] == [*map(id, ours.all_params())]
        ours.state.clear()
        expected.state.clear()
        with NoDoubles():
            found = norms(model, ours, step)
        assert found == pytest.approx(norms(copy, expected, step), rel=1e-6)
        roster = ours._everything().roster
        assert str(roster.device) == device
        assert roster.sum_dtype is (torch.float64 if device == CPU else torch.float32)


def test_a_shard_that_moves_may_keep_its_layout(swapping: None) -> None:
    """Tensors of one layout have one spec in torch 2.13, wherever they are: it does not tell that one was moved."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        shard = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False)
        model = nn.ParameterList([nn.Parameter(shard)])
        optimizer = NpuFusedAdamW(model.parameters(), lr=0.1)
        for device in (NPU, CPU, NPU, CPU):
            model.to(device)
            roster = optimizer._everything().roster
            assert str(roster.device) == device
            assert roster.sum_dtype is (torch.float64 if device == CPU else torch.float32)
    finally:
        dist.destroy_process_group()


def test_members_with_other_types_send_the_same(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has float64 parameters only must not send more bytes than the others expect."""
    sent: list[tuple[torch.dtype, torch.Size]] = []
    all_reduce = dist.all_reduce

    def noted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        sent.append((tensor.dtype, tensor.shape))
        return all_reduce(tensor, *args, **options)

    monkeypatch.setattr(dist, "all_reduce", noted)
    every = []
    for wide in (False, True):
        model = model_on(NPU, wide=wide)
        sent.clear()
        norms(model, optimizer_of(model, world), 0)
        every.append([*sent])
    assert every[0] == every[1] and every[0]
