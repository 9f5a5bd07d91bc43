"""Lazily negated views, whose memory holds numbers of the other sign."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from native_buckets import make_bucket
from torch import Tensor
from torch.nn import Parameter

from ingot.backends.native import NATIVE
from ingot.optim import NpuFusedAdamW, NpuFusedSGD
from training import assert_same, tensors_of, train


def test_negated_views() -> None:
    """A lazily negated gradient, as the backward of complex numbers leaves it, is never read with the wrong sign."""
    grad = torch.randn(10)
    bucket = make_bucket("sgd", [torch.zeros(10)], [torch._neg_view(grad)])
    assert NATIVE.prepare(bucket) == "tensor 0, grad: it is a lazily negated view"
    param = torch.zeros(10, requires_grad=True)
    optimizer = NpuFusedSGD([param], lr=0.1)
    param.grad = torch._neg_view(grad)
    optimizer.step()
    assert torch.allclose(param.detach(), 0.1 * grad)


def imaginary_part() -> Tensor:
    """Whose elements are not neighbours in memory."""
    return torch.complex(torch.zeros(3), torch.ones(3)).conj().imag


def neighbours() -> Tensor:
    """As nobody makes them but on purpose."""
    return torch._neg_view(torch.ones(3))


@pytest.mark.parametrize("make", [imaginary_part, neighbours])
def test_negated_parameters_and_states(make: Callable[[], Tensor]) -> None:
    """What is behind a negated view has the other sign; such tensors are updated by another backend, in place."""
    for backend in (None, "reference"):
        param, plain = make().requires_grad_(), torch.ones(3, requires_grad=True)
        optimizer = NpuFusedSGD([param, plain], lr=0.1, momentum=0.9, backend=backend)
        for step in range(4):
            param.grad, plain.grad = torch.ones(3), torch.ones(3)
            if step == 2:
                buffer = optimizer.state[plain]["momentum_buffer"]
                optimizer.state[plain]["momentum_buffer"] = torch._neg_view(-buffer)
            optimizer.step()
        moved = 0.1 * (1 + 1.9 + 2.71 + 3.439)
        torch.testing.assert_close(param.detach().resolve_neg(), torch.full((3,), -1 - moved))
        torch.testing.assert_close(plain.detach(), torch.full((3,), 1 - moved))


@pytest.mark.parametrize("backend", [None, "lists"])
def test_a_negated_state_that_replaces_another(backend: str | None) -> None:
    """The quick path asks every tensor that has come to another address, a remembered plan all of them."""
    runs = []
    for each in (backend, "reference"):
        param = Parameter(torch.ones(3))
        optimizer = NpuFusedAdamW([param], lr=0.1, backend=each)
        train(optimizer, [param], 5)
        assert (optimizer._quick is None) == (each is not None)
        slots = optimizer.state[param]
        slots["exp_avg"] = torch._neg_view(-slots["exp_avg"])
        train(optimizer, [param], 3)
        runs.append({name: each.resolve_neg() for name, each in tensors_of(optimizer).items()})
    assert_same(*runs, rtol=0 if backend is None else 1e-6)
