"""The job of test_fsdp.py, and small models for others: trained by torch's own parallel wrappers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from layouts import mesh_of
from matrix import Outcome, outcomes
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from cases import CASES, Case
from ingot.optim import NpuFusedAdamW
from ingot.optimizer import FusedOptimizer

STEPS = 20
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 0.01, "amsgrad": True, "max_grad_norm": 0.5},
    "sgd": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "lamb": {"lr": 0.01, "weight_decay": 0.01, "use_global_grad_norm": True},
    "adamp": {"lr": 0.01, "weight_decay": 0.1, "delta": 0.4},
    "adam": {"lr": 0.01, "weight_decay": 0.01, "max_grad_norm": 0.5},
    "adadelta": {"lr": 1.0, "weight_decay": 0.01},
    "rmsprop": {"lr": 0.01, "momentum": 0.9, "centered": True},
    "rmsprop_tf": {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01},
    "bert_adam": {"lr": 0.01, "warmup": 0.2, "t_total": 40, "max_grad_norm": 0.1},
}


def make_model() -> nn.Module:
    """Even, uneven and (on 4 processes) empty shards: layers of 8, 6 and 1 rows, the same in every process."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)
    )


def batch(step: int, part: int = 0, parts: int = 1) -> tuple[Tensor, Tensor]:
    """Samples of step ``step``; or one process's part of them."""
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(8, 5, generator=generator)
    targets = inputs.sum(1, keepdim=True).sin()
    size = 8 // parts
    here = slice(part * size, (part + 1) * size)
    return inputs[here], targets[here]


def loss_of(model: nn.Module, step: int, part: int = 0, parts: int = 1) -> Tensor:
    """The loss over samples; the mean over parts is the loss over all."""
    inputs, targets = batch(step, part, parts)
    return (model(inputs) - targets).square().mean()


def train(
    model: nn.Module,
    optimizer: Any,
    part: int = 0,
    parts: int = 1,
    steps: int = STEPS,
    first: int = 0,
) -> list[float]:
    """Train on this process's part of each batch; returns the losses over the whole batch."""
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(model, step, part, parts)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if parts > 1:
            dist.all_reduce(loss.detach())
        losses.append(loss.item() / parts)
    return losses


def whole_tensors(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """Parameters and states as whole tensors by name."""
    result = {}
    for name, param in model.named_parameters():
        result[name.removeprefix("module.")] = param.detach()
        for key, value in optimizer.state.get(param, {}).items():
            result[f"{name.removeprefix('module.')} {key}"] = torch.as_tensor(value)
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in result.items()}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """The same names and numbers."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name].to(value.dtype),
            value,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


# The gradients are averaged over processes, those of the whole run over samples: a rounding apart, which 20 steps of
# a division by the root of a small second moment magnify.
NEAR = 2e-4


def expect_whole(case: Case, model: nn.Module, part: int, parts: int) -> FusedOptimizer:
    """Train a parallel model and the plain one; everything comes out alike."""
    options = OPTIONS[case.name]
    plain = make_model()
    reference = case.make(plain.parameters(), **options)
    expected = train(plain, reference)
    optimizer = case.make(model.parameters(), **options)
    losses = train(model, optimizer, part, parts)
    torch.testing.assert_close(losses, expected, rtol=NEAR, atol=NEAR)
    assert_close(whole_tensors(model, optimizer), whole_tensors(plain, reference), NEAR)
    return optimizer


def fsdp(case: Case, rank: int, mesh_shape: tuple[int, ...], **policies: Any) -> None:
    """fully_shard of every layer and of the model, over one mesh or (HSDP) over copies of shards."""
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh_of(mesh_shape), **policies)
    fully_shard(model, mesh=mesh_of(mesh_shape), **policies)
    optimizer = expect_whole(case, model, rank, dist.get_world_size())
    assert all(isinstance(p, DTensor) for p in model.parameters())
    for param in model.parameters():
        for name, value in optimizer.state[param].items():
            if name != "step":
                assert isinstance(value, DTensor) and value.placements == param.placements


def mixed_precision(rank: int) -> None:
    """Computed in bfloat16, reduced and updated in float32: the optimizer sees float32 shards."""
    model = make_model()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = NpuFusedAdamW(model.parameters(), lr=0.01, max_grad_norm=1.0)
    losses = train(model, optimizer, rank, dist.get_world_size())
    plain = make_model()
    expected = train(plain, NpuFusedAdamW(plain.parameters(), lr=0.01, max_grad_norm=1.0))
    torch.testing.assert_close(losses, expected, rtol=0.05, atol=0.02)  # bfloat16 has 8 bits
    assert {param.dtype for param in optimizer.state} == {torch.float32}


def tensor_parallel(case: Case) -> None:
    """Columns and rows of layers split over one mesh dimension; with FSDP2 over the other if there are 4."""
    processes, rank = dist.get_world_size(), dist.get_rank()
    mesh = mesh_of((processes // 2, 2))
    model = make_model()
    plan = {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "3": RowwiseParallel(input_layouts=Replicate()),
    }
    parallelize_module(model, mesh["inner"], plan)
    if processes == 4:
        fully_shard(model, mesh=mesh["outer"])
        expect_whole_2d(case, model, rank // 2)
    else:
        expect_whole_2d(case, model, 0, 1)


def expect_whole_2d(case: Case, model: nn.Module, part: int, parts: int = 2) -> None:
    """As expect_whole, where the processes of the inner mesh dimension see the same samples."""
    plain = make_model()
    reference = case.make(plain.parameters(), **OPTIONS[case.name])
    train(plain, reference)
    optimizer = case.make(model.parameters(), **OPTIONS[case.name])
    for step in range(STEPS):
        loss_of(model, step, part, parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_close(whole_tensors(model, optimizer), whole_tensors(plain, reference), NEAR)


def sharded_models(rank: int, processes: int) -> Outcome:
    """The job of test_fsdp.py."""
    checks: dict[str, Callable[[], None]] = {}
    for stem, case in CASES.items():
        checks[f"fsdp {stem}"] = partial(fsdp, case, rank, (processes,))
        checks[f"tensor parallel {stem}"] = partial(tensor_parallel, case)
        if processes == 4:
            checks[f"hsdp {stem}"] = partial(fsdp, case, rank, (2, 2))
        else:
            policy = CPUOffloadPolicy(pin_memory=False)
            checks[f"offload {stem}"] = partial(fsdp, case, rank, (2,), offload_policy=policy)
    checks["mixed precision"] = partial(mixed_precision, rank)
    return outcomes(checks.items())
