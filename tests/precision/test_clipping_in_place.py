"""Clipping gradients in place, by the fused function: the numbers of torch, any type and layout."""

import math

import pytest
import torch
from scaling import SHAPES
from torch.nn.utils import clip_grad_norm_

from cases import CASES, Case, each_case
from training import give_grads, make_params, set_grad


@each_case
@pytest.mark.parametrize("norm_type", [2, 2.0, 1, 3, 0.5, math.inf])
@pytest.mark.parametrize("max_norm", [0.3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_in_place_as_torch(
    case: Case, norm_type: float, max_norm: float, dtype: torch.dtype
) -> None:
    ours, theirs = make_params(SHAPES, dtype), make_params(SHAPES, dtype)
    optimizer = case.make(ours, lr=0.01)
    for params in (ours, theirs):
        give_grads(params, 0)
        for param in params:
            param.grad *= 1 + 2j if dtype.is_complex else 1
    places = [param.grad.data_ptr() for param in ours]
    norm = optimizer.clip_grad_norm_fused_(max_norm, norm_type)
    rtol = 1e-14 if dtype is torch.float64 else 1e-6
    expected = clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(norm, expected, rtol=rtol, atol=0)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=rtol, atol=0)
    assert places == [param.grad.data_ptr() for param in ours]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("norm_type", [2, math.inf, 1])
def test_in_place_with_a_norm_that_is_not_finite(value: float, norm_type: float) -> None:
    ours, theirs = make_params(SHAPES), make_params(SHAPES)
    for params in (ours, theirs):
        give_grads(params, 0)
        params[3].grad[1, 2, 0, 1] = value
    norm = CASES["sgd"].make(ours).clip_grad_norm_fused_(0.5, norm_type)
    expected = clip_grad_norm_(theirs, 0.5, norm_type)
    torch.testing.assert_close(norm, expected, equal_nan=True)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, two.grad, equal_nan=True)


@pytest.mark.parametrize("bad", [{"max_norm": -1}, {"max_norm": math.nan}, {"norm_type": 0}])
def test_in_place_refuses(bad: dict[str, float]) -> None:
    params = make_params(SHAPES)
    give_grads(params, 0)
    [(option, value)] = bad.items()
    with pytest.raises(ValueError, match=f" {value!r} .*{option} must be a number"):
        CASES["sgd"].make(params).clip_grad_norm_fused_(**{"max_norm": 1.0, **bad})


def test_in_place_over_types_and_layouts() -> None:
    """float16 and bfloat16 gradients add up in double precision; strided ones keep their neighbours."""
    params = make_params([(6, 4)] * 3)
    base = torch.full((6, 8), 7.0)
    grads = [torch.randn(6, 4).half(), torch.randn(4, 6).bfloat16().t(), base[:, ::2]]
    base[:, ::2] = torch.randn(6, 4)
    for param, grad in zip(params, grads, strict=True):
        set_grad(param, grad)
    wide = [grad.double() for grad in grads]
    norm = CASES["adamw"].make(params).clip_grad_norm_fused_(0.5)
    expected = torch.cat([grad.flatten() for grad in wide]).norm()
    assert norm.dtype is torch.float32
    torch.testing.assert_close(norm.double(), expected, rtol=1e-7, atol=0)
    for param, grad in zip(params, wide, strict=True):
        scaled = (grad * (0.5 / (expected + 1e-6))).to(param.grad.dtype)
        torch.testing.assert_close(
            param.grad, scaled, rtol=2 * torch.finfo(scaled.dtype).eps, atol=0
        )
    assert torch.equal(base[:, 1::2], torch.full((6, 4), 7.0))
