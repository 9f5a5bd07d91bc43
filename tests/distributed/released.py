"""The job of test_released.py: gradients released inside backward, of models that several processes share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from layouts import mesh_of
from matrix import Outcome, outcomes
from models import OPTIONS, assert_close, loss_of, make_model, whole_tensors
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from cases import CASES, Case
from ingot.optim import NpuFusedAdamW

Shard = Callable[[nn.Module], nn.Module]
STEPS = 4  # the states are made in the first, plans are remembered from the third on


def by_layer(model: nn.Module) -> nn.Module:
    """Gradients of each layer are reduced by themselves, the last ones when backward ends."""
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def by_columns_and_rows(model: nn.Module) -> nn.Module:
    """Tensor parallel: autograd itself makes the gradients of the shards."""
    plan = {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "3": RowwiseParallel(input_layouts=Replicate()),
    }
    return parallelize_module(model, mesh_of((1, dist.get_world_size()))["inner"], plan)


SHARDS: dict[str, Shard] = {
    "fsdp": fully_shard,
    "fsdp by layer": by_layer,
    "hsdp": lambda model: fully_shard(model, mesh=mesh_of((1, dist.get_world_size()))),
    "offload": lambda model: fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "tensor parallel": by_columns_and_rows,
}


def make(case: Case, model: nn.Module) -> Any:
    """The optimizer, without what needs all gradients at once."""
    options = {**OPTIONS[case.name], "max_grad_norm": -1 if case.name == "bert_adam" else None}
    if case.name == "lamb":
        options["use_global_grad_norm"] = False
    return case.make(model.parameters(), **options)


def same_bits(case: Case, shard: Shard, rank: int) -> None:
    """Released or not, the numbers are the same."""
    results = []
    for released in (False, True):
        model = shard(make_model())
        optimizer = make(case, model)
        if released:
            optimizer.release_gradients()
        parts = 1 if shard is by_columns_and_rows else dist.get_world_size()
        rank %= parts
        for step in range(STEPS):
            loss_of(model, step, rank, parts).backward()
            assert not released or all(param.grad is None for param in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        results.append(whole_tensors(model, optimizer))
    assert_close(*results, tolerance=0.0)


def accumulated(case: Case, rank: int) -> None:
    """fully_shard adds up gradients by itself while they are not reduced: the hook comes with the sum."""
    results = []
    for released in (False, True):
        model: Any = by_layer(make_model())
        optimizer = make(case, model)
        if released:
            optimizer.release_gradients()
        for step in range(0, STEPS, 2):
            model.set_requires_gradient_sync(False)
            loss_of(model, step, rank, dist.get_world_size()).backward()
            model.set_requires_gradient_sync(True)
            loss_of(model, step + 1, rank, dist.get_world_size()).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(whole_tensors(model, optimizer))
    assert_close(*results, tolerance=0.0)


def ddp_is_refused() -> None:
    """Its gradients are averaged after the hook: found when gradients are released, or in the first backward."""
    for wrapped_first in (True, False):
        plain = make_model()
        before = [param.detach().clone() for param in plain.parameters()]
        optimizer = NpuFusedAdamW(plain.parameters())
        model = DistributedDataParallel(plain) if wrapped_first else plain
        try:
            optimizer.release_gradients()
            model = DistributedDataParallel(plain)
            loss_of(model, 0).backward()
            raise AssertionError("not refused")
        except RuntimeError as error:
            assert "DistributedDataParallel module" in str(error), str(error)
            assert (optimizer._released is None) == wrapped_first
        for param, old in zip(plain.parameters(), before, strict=True):
            assert torch.equal(param, old)
        assert not optimizer.state


def released(rank: int) -> Outcome:
    """What went wrong, by check."""
    checks: dict[str, Callable[[], None]] = {
        f"{name} {way}": partial(same_bits, case, shard, rank)
        for name, case in CASES.items()
        for way, shard in SHARDS.items()
        if way == "fsdp by layer" or name in ("adamw", "lamb", "adamp")
    }
    for name in ("adamw", "lamb"):
        checks[f"{name} accumulated"] = partial(accumulated, CASES[name], rank)
    checks["ddp"] = ddp_is_refused
    return outcomes(checks.items())
