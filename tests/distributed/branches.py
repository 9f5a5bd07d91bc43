"""A job of test_matrix.py: what needs special numbers or a graph: AdamP's branches, Lamb's guards, versions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from layouts import LAYOUTS, Layout
from matrix import Outcome, compare, outcomes, train_both
from torch import Tensor

from cases import BACKENDS
from ingot.optim import NpuFusedAdamP, NpuFusedLamb
from training import give_grads, make_params


def adamp_grads(params: list[Tensor], step: int) -> None:
    """Gradients that send parameter 0 to the projection per row, 1 to that per tensor, 2 to none."""
    generator = torch.Generator().manual_seed(step)
    rows, layer, none = params
    noise = torch.randn(rows.shape, generator=generator)
    weight = rows.detach()
    rows.grad = noise - weight * (noise * weight).sum(1, True) / weight.square().sum(1, True)
    weight = layer.detach()
    squares = weight.square().sum(1, True)
    signs = torch.tensor([1.0, -1.0] * (len(layer) // 2)).unsqueeze(1)
    layer.grad = weight * signs / squares
    none.grad = none.detach().clone()
    cosines = [torch.cosine_similarity(p.detach(), p.grad, 1).abs().max().item() for p in params]
    whole = [torch.cosine_similarity(p.detach().flatten(), p.grad.flatten(), 0) for p in params]
    assert cosines[0] < 1e-3 and cosines[1] > 0.99 and cosines[2] > 0.99
    assert abs(whole[1]) < 1e-3 and whole[2] > 0.99


def adamp_branches(layout: Layout) -> None:
    """All three branches, each parameter split over processes."""
    wholes = make_params([(6, 5), (10, 7), (4, 3)])
    options = dict(lr=0.05, weight_decay=0.5, delta=0.1, wd_ratio=0.1)
    make = partial(NpuFusedAdamP, **options)
    split, whole = train_both(make, wholes, layout, adamp_grads)
    compare(layout, split, whole)


def lamb_grads(params: list[Tensor], step: int) -> None:
    """Gradients that are zero: everywhere for parameter 0, in the first row for parameter 2."""
    give_grads(params, step)
    assert all(param.grad is not None for param in params)
    params[0].grad.zero_()  # type: ignore[union-attr]
    params[2].grad[0].zero_()  # type: ignore[union-attr, index]


def lamb_guards(layout: Layout) -> None:
    """Zero weights and zero updates, in a whole tensor or in the shards of some processes only."""
    wholes = make_params([(5, 3), (4, 6), (4, 4), (8, 2)])
    with torch.no_grad():
        wholes[1].zero_()
        wholes[2][1:].zero_()
        wholes[3][:, 0].zero_()
    before = wholes[0].detach().clone()
    split, whole = train_both(partial(NpuFusedLamb, lr=0.01), wholes, layout, lamb_grads)
    compare(layout, split, whole)
    torch.testing.assert_close(wholes[0].detach(), before, rtol=0, atol=0)
    assert wholes[1].abs().min() > 0


def versions(layout: Layout) -> None:
    """Autograd notices that a DTensor it saved was changed by a step, whatever the backend."""
    for backend in BACKENDS:
        (param,) = layout.params(make_params([(8, 6)]))
        loss = (param * param).sum()
        param.grad = param.detach().clone()
        NpuFusedAdamP([param], backend=backend).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def branches(rank: int, processes: int) -> Outcome:
    """The job: all of them, on every layout."""
    return outcomes(
        (f"{check.__name__}-{name}", partial(check, Layout(name, processes)))
        for check in (adamp_branches, lamb_guards, versions)
        for name in LAYOUTS[processes]
    )
