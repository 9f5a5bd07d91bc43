"""The job of test_watching.py: metrics of split parameters are those of whole ones."""

from __future__ import annotations

import math
from functools import partial

import torch
from matrix import Outcome, outcomes
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from cases import CASES, Case
from training import give_grads, make_params

SHAPES = [(5, 4), (2, 6), (7,), (3, 3, 2), (1, 8)]
PLACES = {"rows": Shard(0), "columns": Shard(-1), "replicated": Replicate()}


def same_numbers(case: Case, place: str, **options: object) -> None:
    """Every number of every parameter, on every process."""
    wholes = make_params(SHAPES)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    parts = [nn.Parameter(spread(param, mesh, place)) for param in make_params(SHAPES)]
    optimizers = [case.make(params, lr=0.1, **options) for params in (wholes, parts)]
    for optimizer in optimizers:
        optimizer.track_metrics(every=2)
    for step in range(4):
        give_grads(wholes, step)
        for whole, part in zip(wholes, parts, strict=True):
            assert whole.grad is not None
            part.grad = spread(whole.grad, mesh, place)
        for optimizer in optimizers:
            optimizer.step()
    expected, found = (optimizer.metrics() for optimizer in optimizers)
    assert list(found) == list(expected) and found.step == 4
    assert math.isclose(found.total_norm, expected.total_norm, rel_tol=1e-6)
    for name, values in expected.items():
        assert found[name].keys() == values.keys()
        for quantity, value in values.items():
            # The float32 sums of a row come in another order.
            assert math.isclose(found[name][quantity], value, rel_tol=1e-4), (name, quantity)


def spread(tensor: Tensor, mesh: object, place: str) -> DTensor:
    """A tensor over all processes; one without columns by its rows."""
    dim = PLACES[place]
    if isinstance(dim, Shard):
        dim = Shard(dim.dim % tensor.ndim)
    return distribute_tensor(tensor.detach(), mesh, [dim])  # type: ignore[arg-type]


def failing_process(rank: int) -> None:
    """A process that cannot plan a tracked step: all raise, nothing is recorded, and the next step is tracked."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    part = nn.Parameter(spread(make_params([(4, 3)])[0], mesh, "rows"))
    optimizer = CASES["adamw"].make([part])
    optimizer.track_metrics(every=1)
    good = spread(torch.ones(4, 3), mesh, "rows")
    part.grad = good
    if rank == 0:
        optimizer.param_groups[0]["betas"] = (2.0, 0.9)
    try:
        optimizer.step()
    except (RuntimeError, ValueError):
        assert not optimizer.metrics()
    else:
        raise AssertionError("the step was made")
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert optimizer.metrics().step == 1


def watching(rank: int) -> Outcome:
    """All checks of one process."""
    checks = {
        f"{stem} {place}": partial(same_numbers, case, place)
        for stem, case in CASES.items()
        for place in PLACES
    }
    for stem in ("adamp", "lamb", "sgd"):
        checks[f"{stem} clipped"] = partial(same_numbers, CASES[stem], "rows", max_grad_norm=0.5)
    checks["a process fails"] = partial(failing_process, rank)
    return outcomes(checks.items())
