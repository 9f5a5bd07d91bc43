"""Clipping in place: as torch.nn.utils.clip_grad_norm_."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from cases import BACKENDS, CASES, Case, each_case
from training import SHAPES, give_grads, make_params

NORMS = [2, 2.0, math.inf, 1, 3, 0.5]


def pair(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """The same parameters with the same gradients, twice."""
    both = make_params(SHAPES, dtype), make_params(SHAPES, dtype)
    for params in both:
        give_grads(params, 0)
    return both


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("max_norm", [0.5, 1e4, 0.0], ids=["clips", "does not", "zero"])
@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_like_torch(
    dtype: torch.dtype,
    norm_type: float,
    max_norm: float,
    native: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if native and "native" not in BACKENDS:
        pytest.skip("no native core here")
    if not native:
        from ingot.backends import NATIVE

        monkeypatch.setattr(type(NATIVE), "unavailable", lambda self: "not today")
    ours, theirs = pair(dtype)
    optimizer = CASES["adamw"].make(ours)
    before = [p.detach().clone() for p in ours]
    norm = optimizer.clip_grad_norm_fused_(max_norm, norm_type)
    # torch adds up in the type of the gradients: compare with its result for the same values in float64.
    wide = [Parameter(p.detach().double()) for p in theirs]
    for one, two in zip(wide, theirs, strict=True):
        one.grad = two.grad.double()
    # torch's own function fails on an empty tensor where the norm is the maximum.
    expected = clip_grad_norm_([p for p in wide if p.numel()], max_norm, norm_type)
    assert norm.shape == () and norm.dtype in (torch.float32, torch.float64)
    close = 1e-12 if dtype is torch.float64 else 1e-6
    torch.testing.assert_close(norm.double(), expected, rtol=close, atol=0)
    rounding = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}.get(dtype, close)
    tiny = 2.0**-24 if dtype is torch.float16 else 1e-12
    for our, wider, start in zip(ours, wide, before, strict=True):
        assert our.grad.dtype is dtype
        torch.testing.assert_close(our.grad.double(), wider.grad, rtol=rounding, atol=tiny)
        assert torch.equal(our, start)


@each_case
def test_several_groups_types_and_layouts_together(case: Case) -> None:
    params = (
        make_params(SHAPES) + make_params(SHAPES, torch.bfloat16) + make_params(dtype=torch.float64)
    )
    give_grads(params, 0)
    odd = Parameter(torch.randn(4, 3, 2, 2))
    odd.grad = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    strided = Parameter(torch.randn(5, 4))
    strided.grad = torch.randn(5, 8)[:, ::2]
    untouched = strided.grad._base.clone() if strided.grad._base is not None else None
    complex_one = Parameter(torch.randn(3, dtype=torch.complex64))
    complex_one.grad = torch.randn(3, dtype=torch.complex64)
    idle = Parameter(torch.randn(3))
    everything = [*params, odd, strided, complex_one, idle]
    groups = [{"params": everything[:5]}, {"params": everything[5:20]}, {"params": everything[20:]}]
    optimizer = case.make(groups)
    grads = [p.grad for p in everything if p.grad is not None]
    before = [grad.clone() for grad in grads]
    expected = math.sqrt(sum(grad.abs().double().square().sum().item() for grad in grads))
    norm = optimizer.clip_grad_norm_fused_(1.0)
    assert norm.item() == pytest.approx(expected, rel=1e-6)
    assert [id(p.grad) for p in everything if p.grad is not None] == [id(g) for g in grads]
    for grad, old in zip(grads, before, strict=True):
        wide = torch.complex128 if grad.is_complex() else torch.float64
        rounding = 2.0**-8 if grad.dtype is torch.bfloat16 else 1e-6
        torch.testing.assert_close(
            grad.to(wide), old.to(wide) / (expected + 1e-6), rtol=rounding, atol=1e-12
        )
    if untouched is not None:
        assert torch.equal(strided.grad._base[:, 1::2], untouched[:, 1::2])
    assert idle.grad is None


@each_case
@pytest.mark.parametrize("norm_type", [2, math.inf, 1])
def test_no_gradients(case: Case, norm_type: float) -> None:
    norm = case.make(make_params()).clip_grad_norm_fused_(1.0, norm_type)
    assert norm.shape == () and norm.item() == 0.0


@each_case
@pytest.mark.parametrize("norm_type", [2, math.inf, 1])
def test_nan_and_inf_are_reported(case: Case, norm_type: float) -> None:
    for value in (math.nan, math.inf):
        params = make_params([(3,), (5,)])
        give_grads(params, 0)
        params[1].grad[2] = value
        norm = case.make(params).clip_grad_norm_fused_(1.0, norm_type).item()
        assert math.isnan(norm) if math.isnan(value) else math.isinf(norm)


@each_case
@pytest.mark.parametrize(("max_norm", "norm_type"), [(-1.0, 2), (math.nan, 2), (1.0, 0), (1.0, -2)])
def test_bad_arguments(case: Case, max_norm: float, norm_type: float) -> None:
    params = make_params()
    give_grads(params, 0)
    optimizer = case.make(params)
    with pytest.raises(ValueError, match=r"max_norm|norm_type"):
        optimizer.clip_grad_norm_fused_(max_norm, norm_type)


@each_case
def test_large_and_small_gradients_do_not_overflow(case: Case) -> None:
    """Squares of 1e30 do not fit float32, those of 1e-30 vanish in it."""
    for size in (1e30, 1e-30):
        params = [Parameter(torch.zeros(100)), Parameter(torch.zeros(100))]
        for param in params:
            param.grad = torch.full((100,), size)
        norm = case.make(params).clip_grad_norm_fused_(math.inf)
        assert norm.item() == pytest.approx(size * math.sqrt(200), rel=1e-6)
