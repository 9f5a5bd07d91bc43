"""The job of test_data_parallel.py: DDP, accumulation of gradients, ZeRO, and norms over several optimizers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from matrix import Outcome, outcomes
from models import (
    NEAR,
    OPTIONS,
    STEPS,
    assert_close,
    expect_whole,
    loss_of,
    make_model,
    train,
    whole_tensors,
)
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from cases import CASES, Case
from ingot.optim import NpuFusedBertAdam
from training import make_params


def ddp(case: Case, rank: int) -> None:
    """DistributedDataParallel; whole tensors in every process."""
    expect_whole(case, DistributedDataParallel(make_model()), rank, dist.get_world_size())


def accumulate(case: Case, rank: int) -> None:
    """Two backward passes per step, the first one under no_sync."""
    processes = dist.get_world_size()
    plain, model = make_model(), DistributedDataParallel(make_model())
    optimizers = [case.make(m.parameters(), **OPTIONS[case.name]) for m in (plain, model)]
    for step in range(0, STEPS, 2):
        for each in (step, step + 1):
            loss_of(plain, each).backward()
        with model.no_sync():
            loss_of(model, step, rank, processes).backward()
        loss_of(model, step + 1, rank, processes).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_close(whole_tensors(model, optimizers[1]), whole_tensors(plain, optimizers[0]), NEAR)


def zero(case: Case, rank: int) -> None:
    """ZeroRedundancyOptimizer: each process updates some parameters; saved and loaded half-way."""
    options = OPTIONS[case.name]
    plain = make_model()
    reference = case.make(plain.parameters(), **options)
    train(plain, reference, steps=2 * STEPS)
    model = DistributedDataParallel(make_model())
    optimizer = zero_optimizer(case, model, options)
    train(model, optimizer, rank, dist.get_world_size())
    optimizer.consolidate_state_dict(to=0)
    saved = [deepcopy(optimizer.state_dict()) if rank == 0 else None]
    dist.broadcast_object_list(saved)
    again = zero_optimizer(case, model, {**options, "lr": 1.0})
    again.load_state_dict(saved[0])
    train(model, again, rank, dist.get_world_size(), first=STEPS)
    params = dict(plain.named_parameters())
    for name, param in model.module.named_parameters():
        torch.testing.assert_close(param, params[name], rtol=NEAR, atol=NEAR)
    assert 0 < len(again.optim.state) < len(params)


def zero_optimizer(case: Case, model: nn.Module, options: dict[str, Any]) -> Any:
    """Clipping norms are over the parameters of all processes."""
    optimizer = ZeroRedundancyOptimizer(model.parameters(), case.kind, **options)
    optimizer.optim.norm_group = dist.group.WORLD
    return optimizer


def norm_group(rank: int) -> None:
    """Parameters of one model in optimizers of several processes, as in a pipeline: groups and types differ."""
    shapes = [(4, 3), (5,), (2, 2), (7,)]
    for scope in ("group", "global"):
        options: dict[str, Any] = {"lr": 0.1, "max_grad_norm": 0.3, "clip_scope": scope}
        wholes = make_params(shapes)
        wholes[3] = nn.Parameter(wholes[3].double())
        copies = deepcopy(wholes)
        whole = NpuFusedBertAdam([{"params": wholes[:2]}, {"params": wholes[2:]}], **options)
        mine = [copies[:1], copies[2:3]] if rank == 0 else [copies[1:2], copies[3:]]
        stage = NpuFusedBertAdam([{"params": params} for params in mine], **options)
        stage.norm_group = dist.group.WORLD
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for one, two in zip(wholes, copies, strict=True):
                one.grad = torch.randn(one.shape, generator=generator).to(one.dtype)
                two.grad = one.grad.clone()
            whole.step()
            stage.step()
            assert whole.grad_norm is not None and stage.grad_norm is not None
            near(stage.grad_norm, whole.grad_norm)
        for index in (0, 2) if rank == 0 else (1, 3):
            near(copies[index], wholes[index])
        for norm_type in (2.0, 3.0, torch.inf):
            norms = [each.clip_grad_norm_fused_(0.5, norm_type) for each in (stage, whole)]
            near(*norms)


def near(actual: Tensor, expected: Tensor) -> None:
    """Equal to the roundings of float32."""
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-6, atol=1e-7)


def data_parallel(rank: int) -> Outcome:
    """The job of test_data_parallel.py."""
    checks: dict[str, Callable[[], None]] = {"norm group": partial(norm_group, rank)}
    for stem, case in CASES.items():
        checks[f"ddp {stem}"] = partial(ddp, case, rank)
        checks[f"accumulate {stem}"] = partial(accumulate, case, rank)
        checks[f"zero {stem}"] = partial(zero, case, rank)
    return outcomes(checks.items())
