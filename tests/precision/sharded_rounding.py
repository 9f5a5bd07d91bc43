"""The job of test_sharded_rounding.py: stochastic rounding of split parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from cases import CASES, Case
from training import give_grads, make_params

OPTIONS = {"lr": 0.05, "state_dtype": "param", "rounding": "stochastic", "rounding_seed": 4}
SHAPES = [(5, 4), (7,), (1, 6), (4, 3, 2)]  # uneven and empty shards among them


def placed(case: Case, placement: Placement, processes: int) -> list[Tensor]:
    """Parameters and states, whole, after three steps of a split optimizer."""
    mesh = init_device_mesh("cpu", (processes,))
    wholes = make_params(SHAPES, torch.bfloat16)

    def lay_out(tensor: Tensor) -> Tensor:
        fits = not placement.is_shard() or placement.dim < tensor.ndim  # type: ignore[attr-defined]
        return distribute_tensor(tensor.detach(), mesh, [placement if fits else Replicate()])

    params = [lay_out(whole).requires_grad_() for whole in wholes]
    optimizer = case.make(params, **OPTIONS)
    for step in range(3):
        give_grads(wholes, step)
        for param, whole in zip(params, wholes, strict=True):
            assert whole.grad is not None
            param.grad = lay_out(whole.grad)
        optimizer.step()
    states = [v for p in params for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    return [tensor.detach().full_tensor() for tensor in (*params, *states)]  # type: ignore[attr-defined]


def whole(case: Case) -> list[Tensor]:
    """The same without any mesh."""
    params = make_params(SHAPES, torch.bfloat16)
    optimizer = case.make(params, **OPTIONS)
    for step in range(3):
        give_grads(params, step)
        optimizer.step()
    states = [v for p in params for v in optimizer.state[p].values() if isinstance(v, Tensor)]
    return [tensor.detach() for tensor in (*params, *states)]


def job(rank: int, processes: int) -> dict[str, list[Tensor]]:
    """Results by case and placement."""
    results = {}
    for name in ("sgd", "adamw"):
        case = CASES[name]
        results[f"{name} whole"] = whole(case)
        results[f"{name} rows"] = placed(case, Shard(0), processes)
        results[f"{name} copies"] = placed(case, Replicate(), processes)
        results[f"{name} columns"] = placed(case, Shard(1), processes)
        results[f"{name} columns again"] = placed(case, Shard(1), processes)
    return results
