"""The job of test_collectives.py: how often processes meet, and what happens when they differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from layouts import COLUMNS, ROWS, Layout, local, mesh_of
from matrix import Outcome, compare, outcomes, train_both
from meetings import counted, raises_everywhere, stepped
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial
from torch.nn import Parameter

from cases import CASES
from ingot.optim import NpuFusedAdamP, NpuFusedAdamW, NpuFusedBertAdam, NpuFusedLamb, NpuFusedSGD
from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params

Check = Callable[[], None]
COUNTS = [
    # optimizer, options, layout, collectives per step
    (NpuFusedAdamW, {}, "rows", 0),
    (NpuFusedSGD, {"momentum": 0.9}, "rows", 0),
    (NpuFusedBertAdam, {"max_grad_norm": -1}, "rows", 0),
    (NpuFusedAdamW, {"max_grad_norm": 1.0}, "rows", 1),
    (NpuFusedSGD, {"max_grad_norm": 1.0}, "columns", 1),
    (NpuFusedBertAdam, {}, "rows", 1),
    # Without clipping, two-pass optimizers first agree on which parameters have gradients.
    (NpuFusedLamb, {}, "rows", 2),
    (NpuFusedLamb, {}, "columns", 2),
    (NpuFusedLamb, {"use_global_grad_norm": True, "max_grad_norm": 1.0}, "rows", 2),
    (NpuFusedAdamP, {}, "rows", 2),
    # Rows are split themselves and are added up; every process has them all then.
    (NpuFusedAdamP, {}, "columns", 2),
    (NpuFusedAdamP, {"max_grad_norm": 1.0}, "rows", 2),
    (NpuFusedAdamP, {"max_grad_norm": 1.0}, "mixed", 3),
]


def count_collectives(
    kind: type[FusedOptimizer], options: dict[str, Any], name: str, expected: int
) -> None:
    """The same few all-reduces for 3 and for 30 parameters; nothing else is communicated."""
    for count in (3, 30):
        optimizer = stepped(kind, Layout(name, 2), count, **options)[0]
        with counted() as calls:
            optimizer.step()
        assert len(calls) == expected, calls
        # A few numbers per parameter, or per row where rows are split: never a tensor.
        assert all(size <= (4 * 5 + 1) * count + 2 for _, size in calls), calls
        if kind is NpuFusedAdamW and not options:
            with counted() as calls:
                optimizer.clip_grad_norm_fused_(1.0)
            assert len(calls) == 1


DISAGREE = [
    (NpuFusedLamb, {}),
    (NpuFusedAdamP, {}),
    (NpuFusedBertAdam, {}),
    (NpuFusedAdamW, {"max_grad_norm": 1.0}),
]


def disagreement(rank: int, kind: type[FusedOptimizer], options: dict[str, Any]) -> None:
    """One process lacks a gradient, or all of them: an error on both; the next step is right again."""
    for missing in (slice(2, 3), slice(None)):
        optimizer, params = stepped(kind, Layout("mixed", 2), 4, **options)
        kept = [param.grad for param in params]
        if rank == 0:
            for param in params[missing]:
                param.grad = None
        before = everything(optimizer)
        raises_everywhere(optimizer.step, "it must have one on all of them or on none")
        for old, new in zip(before, everything(optimizer), strict=True):
            assert torch.equal(old, new), "something changed before the disagreement was noticed"
        raises_everywhere(lambda o=optimizer: o.clip_grad_norm_fused_(1.0), "on all of them")
        raises_everywhere(
            lambda o=optimizer: o.clip_grad_norm_fused_(1.0, torch.inf), "on all of them"
        )
        for param, grad in zip(params, kept, strict=True):
            param.grad = grad
        optimizer.step()


def everything(optimizer: FusedOptimizer) -> list[Tensor]:
    """Copies of the local parts of all parameters and states, and the step counts."""
    values = [*wholes_of(optimizer)]
    values += [v for slots in optimizer.state.values() for v in slots.values()]
    return [local(torch.as_tensor(value)).detach().clone() for value in values]


def failing_clip(rank: int) -> None:
    """A process that cannot clip says why, and the others do not wait for it."""
    for norm_type in (2.0, torch.inf, 3.0):
        for kind in ("sparse", "meta"):
            optimizer, params = stepped(NpuFusedAdamW, Layout("mixed", 2), 4)
            if rank == 1:  # parameter 1 is an ordinary tensor in this layout
                params[1] = torch.nn.Parameter(
                    torch.ones(5, 4, device="cpu" if kind == "sparse" else kind)
                )
                grad = torch.ones_like(params[1])
                params[1].grad = grad.to_sparse() if kind == "sparse" else grad
                optimizer.param_groups[0]["params"][1] = params[1]
            words = kind if rank == 1 else "another process could not make this step"
            raises_everywhere(partial(optimizer.clip_grad_norm_fused_, 1.0, norm_type), words)


def no_collective_no_error(rank: int) -> None:
    """Where nothing is communicated nothing is noticed: every process moves what it has a gradient for."""
    optimizer, params = stepped(NpuFusedAdamW, Layout("rows", 2), 2)
    before = [param.to_local().clone() for param in params]
    if rank == 0:
        params[0].grad = None
    optimizer.step()
    moved = [not torch.equal(p.to_local(), b) for p, b in zip(params, before, strict=True)]
    assert moved == [rank != 0, True]
    assert [optimizer.state[p]["step"] for p in params] == [1 if rank == 0 else 2, 2]


def failure_of_one(rank: int, kind: type[FusedOptimizer], options: dict[str, Any]) -> None:
    """A process that cannot plan its step raises its own error, and the others one that says so."""
    optimizer, params = stepped(kind, Layout("rows", 2), 2, **options)
    if rank == 1:
        optimizer.state[params[0]]["exp_avg"] = torch.zeros(3)
    words = "its state exp_avg" if rank == 1 else "another process could not make this step"
    raises_everywhere(optimizer.step, words)


def nothing_to_do(rank: int) -> None:
    """Processes with empty shards only, and steps without any gradient, do not hold the others up."""
    for case in CASES.values():
        layout = Layout("rows", 2)
        wholes = make_params([(1, 4), (1,)])
        split, whole = train_both(partial(case.make, max_grad_norm=0.5), wholes, layout)
        compare(layout, split, whole)
        assert (split.param_groups[0]["params"][0].to_local().numel() == 0) == (rank == 1)
        for param in split.param_groups[0]["params"]:
            param.grad = None
        before = {k: v.clone() for k, v in enumerate(map(DTensor.to_local, wholes_of(split)))}
        split.step()
        assert split.clip_grad_norm_fused_(1.0) == 0
        assert split.clip_grad_norm_fused_(1.0, torch.inf) == 0
        for k, v in enumerate(map(DTensor.to_local, wholes_of(split))):
            assert torch.equal(before[k], v)


def wholes_of(optimizer: FusedOptimizer) -> list[Any]:
    return [p.detach() for p in optimizer.param_groups[0]["params"]]


def late_gradient() -> None:
    """A parameter that gets its first gradient late, on all processes, starts late."""

    def grads(params: list[Tensor], step: int) -> None:
        give_grads(params, step)
        if step < 3 or step == 10:
            params[1].grad = None

    for case in CASES.values():
        for name in ("rows", "mixed"):
            layout = Layout(name, 2)
            wholes = make_params([(5, 3), (4, 6), (7,), (3, 1)])
            make = partial(case.make, lr=0.01, max_grad_norm=0.5)
            split, whole = train_both(make, wholes, layout, grads)
            compare(layout, split, whole)


def bad_placements() -> None:
    """Partial, mixed or differing placements are refused on all processes, before anything changes."""
    mesh = mesh_of((2,))
    for case in CASES.values():
        values = torch.ones(4, 4)
        param = Parameter(DTensor.from_local(values.clone(), mesh, [ROWS], run_check=False))
        optimizer = case.make([param])
        for grad, words in (
            (DTensor.from_local(torch.ones(8, 4), mesh, [Partial()], run_check=False), "partial"),
            (DTensor.from_local(torch.ones(8, 2), mesh, [COLUMNS], run_check=False), "placed as"),
        ):
            param.grad = grad
            raises_everywhere(optimizer.step, words)
            raises_everywhere(lambda o=optimizer: o.clip_grad_norm_fused_(1.0), words)
        assert torch.equal(param.to_local(), values) and not optimizer.state


def collectives(rank: int) -> Outcome:
    """The job of test_collectives.py, with 2 processes."""
    checks: dict[str, Check] = {}
    for i, (kind, options, name, expected) in enumerate(COUNTS):
        checks[f"count {i} {kind.__name__} {name}"] = partial(
            count_collectives, kind, options, name, expected
        )
    for kind, options in DISAGREE:
        checks[f"disagreement {kind.__name__}"] = partial(disagreement, rank, kind, options)
        checks[f"failure of one {kind.__name__}"] = partial(failure_of_one, rank, kind, options)
    checks["failing clip"] = partial(failing_clip, rank)
    checks["no collective"] = partial(no_collective_no_error, rank)
    checks["nothing to do"] = partial(nothing_to_do, rank)
    checks["late gradient"] = late_gradient
    checks["bad placements"] = bad_placements
    return outcomes(checks.items())
