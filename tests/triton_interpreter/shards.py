"""The job of test_shards.py: DTensors that the emitted kernels update shard by shard."""

from __future__ import annotations

from typing import Any

import quick_interpreter
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Shard, distribute_tensor

from cases import CASES
from training import give_grads, make_params

SHAPES = [(5, 40), (64, 128), (3,)]  # uneven shards; rows that fill blocks of 8-bit states
SETTINGS: dict[str, tuple[str, Placement, dict[str, Any]]] = {
    "adamw, rows": ("adamw", Shard(0), {"lr": 0.01}),
    "adamw, 8-bit": ("adamw", Shard(0), {"lr": 0.01, "state_dtype": "8bit"}),
    "lamb, columns": ("lamb", Shard(-1), {"lr": 0.01, "weight_decay": 0.1}),
}
STEPS = 2


def whole(setting: str) -> list[Tensor]:
    """Parameters and states of ordinary tensors, after some steps."""
    name, _, options = SETTINGS[setting]
    params = make_params(SHAPES)
    optimizer = CASES[name].make(params, **options, backend="triton")
    for step in range(STEPS):
        give_grads(params, step)
        optimizer.step()
    return [tensor.detach() for tensor in (*params, *states_of(optimizer, params))]


def job(rank: int) -> dict[str, list[Tensor]]:
    """The same of DTensors, put together again."""
    quick_interpreter.install()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    result = {}
    for setting, (name, placement, options) in SETTINGS.items():
        wholes = make_params(SHAPES)
        params = [
            distribute_tensor(tensor.detach(), mesh, [placement]).requires_grad_()
            for tensor in wholes
        ]
        optimizer = CASES[name].make(params, **options, backend="triton")
        for step in range(STEPS):
            give_grads(wholes, step)
            for param, tensor in zip(params, wholes, strict=True):
                assert tensor.grad is not None
                param.grad = distribute_tensor(tensor.grad, mesh, [placement])
            optimizer.step()
        tensors: list[Any] = [*params, *states_of(optimizer, params)]
        result[setting] = [tensor.detach().full_tensor() for tensor in tensors]
    return result


def states_of(optimizer: Any, params: list[Any]) -> list[Tensor]:
    """Those shaped like their parameters."""
    names = optimizer.spec.variant(optimizer.param_groups[0]).states
    return [optimizer.state[param][name] for param in params for name in names]
