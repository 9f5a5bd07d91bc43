"""Part of the job of test_gradients.py: an overflow in one process is seen by all of them, with every scaler."""

from __future__ import annotations

import torch
import torch.distributed as dist
from layouts import COPIES, ROWS, Layout, local, mesh_of
from matrix import compare
from meetings import raises_everywhere, stepped
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from cases import Case
from ingot.optim import NpuFusedAdamW, NpuFusedLamb
from training import give_grads, make_params


def scaler(layout: Layout, case: Case) -> None:
    """GradScaler: an overflow in a shard of one process makes all of them skip the step; then they go on."""
    wholes = make_params([(5, 4), (4,), (6, 3), (2, 2)])
    params = layout.params(wholes)
    optimizer, whole = case.make(params, lr=0.01), case.make(wholes, lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # creates the scale
    for step in range(5):
        give_grads(wholes, step)
        scale = scaler.get_scale()
        for i, (param, one) in enumerate(zip(params, wholes, strict=True)):
            assert one.grad is not None
            param.grad = layout.lay_out(i, one.grad * scale)
        if step == 2:
            if layout.mesh.get_coordinate()[-1] == 0:
                part = local(params[0].grad)
                part[(0,) * part.ndim] = torch.inf
        else:
            whole.step()
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1024.0 if step < 2 else 512.0)
    compare(layout, optimizer, whole)


def local_overflow(rank: int) -> None:
    """Only one process sees the overflow: all skip; a scale that differs from then on is an error on all."""
    for kind in (NpuFusedAdamW, NpuFusedLamb):
        optimizer, params = stepped(kind, Layout("mixed", 2), 4)
        before = [local(param).clone() for param in params]
        optimizer.found_inf = torch.tensor(float(rank == 1))
        optimizer.grad_scale = torch.tensor(8.0)
        optimizer.step()
        for param, old in zip(params, before, strict=True):
            assert torch.equal(local(param), old) and optimizer.state[param]["step"] == 1
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.grad_scale = torch.tensor(8.0 / (1 + rank))
        raises_everywhere(optimizer.step, "GradScaler has the scale")
        assert not hasattr(optimizer, "found_inf")
        optimizer.step()
        assert optimizer.state[params[0]]["step"] == 2


def scalers_agree(rank: int) -> None:
    """Only one process sees the overflow: the scalers of all go down together, and the next step is made.

    torch 2.13 asks the processes of the first gradient alone, and that one is the same on all of them here.
    """
    mesh = mesh_of((2,))
    for kind in (NpuFusedAdamW, NpuFusedLamb):
        params: list[Tensor] = [
            Parameter(DTensor.from_local(torch.ones(4, 3), mesh, [each], run_check=False))
            for each in (COPIES, ROWS)
        ]
        optimizer = kind(params, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.zeros(()))
        for step in range(3):
            for param in params:
                param.grad = torch.ones_like(param) * scaler.get_scale()
            if step == 1 and rank == 1:
                local(params[1].grad)[0, 0] = torch.inf  # type: ignore[arg-type]
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == (8.0 if step == 0 else 4.0), (step, scaler.get_scale())
        assert optimizer.state[params[0]]["step"] == 2


def stages_agree(rank: int) -> None:
    """The same where each process has other parameters of the model, as a pipeline stage: they clip by one norm."""
    stage = Parameter(torch.ones(4, 3))
    optimizer = NpuFusedAdamW([stage], lr=0.1, max_grad_norm=1.0)
    optimizer.norm_group = dist.group.WORLD
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    for step in range(4):
        # The gradients are 3 and 4 times those of a unit vector, so their common norm is 5.
        stage.grad = torch.full((4, 3), (3.0 + rank) / 12**0.5) * scaler.get_scale()
        if step == 1 and rank == 1:
            stage.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (8.0 if step == 0 else 4.0), (step, scaler.get_scale())
        if step != 1:
            torch.testing.assert_close(optimizer.grad_norm, torch.tensor(5.0))
    assert optimizer.state[stage]["step"] == 3
