"""Clipping by the norm inside the step: gradients are left alone."""

import math
from typing import Any

import pytest
import torch
from scaling import SHAPES, scale_grads
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

from cases import CASES, Case, each_backend, each_case
from ingot.optimizer import FusedOptimizer
from training import assert_same, give_grads, make_params, set_grad, tensors_of

# What switches the built-in clipping off: BertAdam has it by default.
UNCLIPPED = {"bert_adam": {"max_grad_norm": -1}}
each_max_norm = pytest.mark.parametrize("max_norm", [1e-3, 0.7, 1e6])


def unclipped(case: Case, params: list[Tensor], **options: Any) -> FusedOptimizer:
    return case.make(params, **options, **UNCLIPPED.get(case.name, {}))


@each_case
@each_backend
@each_max_norm
def test_in_the_step_as_before_it(case: Case, backend: str, max_norm: float) -> None:
    """Torch's clipping and then the step, in one; only rounding of the norm and the product differ."""
    options = {"lr": 0.01, "weight_decay": 0.1, "backend": backend}
    inside = case.make(make_params(SHAPES, torch.float64), **options, max_grad_norm=max_norm)
    before = unclipped(case, make_params(SHAPES, torch.float64), **options)
    for step in range(4):
        for optimizer in (inside, before):
            give_grads(optimizer.param_groups[0]["params"], step)
        grads = [param.grad.clone() for param in inside.param_groups[0]["params"]]
        inside.step()
        norm = clip_grad_norm_(before.param_groups[0]["params"], max_norm)
        before.step()
        assert isinstance(inside.grad_norm, Tensor) and inside.grad_norm.dtype is torch.float64
        torch.testing.assert_close(inside.grad_norm, norm, rtol=1e-14, atol=0)
        for param, grad in zip(inside.param_groups[0]["params"], grads, strict=True):
            assert torch.equal(param.grad, grad)
    assert_same(tensors_of(inside), tensors_of(before), rtol=1e-12, atol=1e-15)
    assert before.grad_norm is None


@each_case
@each_backend
def test_a_norm_below_the_limit_changes_no_bit(case: Case, backend: str) -> None:
    clipped = case.make(make_params(SHAPES), lr=0.01, backend=backend, max_grad_norm=1e3)
    plain = unclipped(case, make_params(SHAPES), lr=0.01, backend=backend)
    for optimizer in (clipped, plain):
        for step in range(3):
            give_grads(optimizer.param_groups[0]["params"], step)
            optimizer.step()
    assert_same(tensors_of(clipped), tensors_of(plain))


@each_case
@each_backend
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_norm_that_is_not_finite(case: Case, backend: str, value: float) -> None:
    """As torch's clipping: NaN makes all gradients NaN; infinity makes them 0 and itself NaN."""
    inside = case.make(make_params(SHAPES), lr=0.01, backend=backend, max_grad_norm=0.5)
    before = unclipped(case, make_params(SHAPES), lr=0.01, backend=backend)
    for step in range(3):
        for optimizer in (inside, before):
            params = optimizer.param_groups[0]["params"]
            give_grads(params, step)
            if step == 1:
                params[1].grad[2, 1] = value
        inside.step()
        norm = clip_grad_norm_(before.param_groups[0]["params"], 0.5)
        before.step()
        torch.testing.assert_close(inside.grad_norm, norm, rtol=1e-6, atol=0, equal_nan=True)
    assert inside.param_groups[0]["params"][1][2, 1].isnan()
    assert_same(tensors_of(inside), tensors_of(before), rtol=3e-6, atol=1e-7)


@each_case
@each_backend
def test_the_norm_is_that_of_the_unscaled_gradients(case: Case, backend: str) -> None:
    scaled = case.make(make_params(SHAPES), lr=0.01, backend=backend, max_grad_norm=0.5)
    plain = case.make(make_params(SHAPES), lr=0.01, backend=backend, max_grad_norm=0.5)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    for step in range(3):
        for optimizer in (scaled, plain):
            give_grads(optimizer.param_groups[0]["params"], step)
        scale_grads(scaler, scaled.param_groups[0]["params"])
        scaler.step(scaled)
        scaler.update()
        plain.step()
        assert torch.equal(scaled.grad_norm, plain.grad_norm)
    assert_same(tensors_of(scaled), tensors_of(plain))


@each_case
@each_backend
def test_one_norm_over_groups_and_types(case: Case, backend: str) -> None:
    """All gradients of the optimizer count, whatever their group and type; BertAdam's scope is its own."""
    lists = [make_params(SHAPES), make_params(SHAPES, torch.bfloat16, 1)]
    options: dict[str, Any] = {"clip_scope": "global"} if case.name == "bert_adam" else {}
    optimizer = case.make(
        [{"params": lists[0]}, {"params": lists[1], "lr": 0.2}],
        lr=0.01,
        backend=backend,
        max_grad_norm=0.5,
        **options,
    )
    params = lists[0] + lists[1]
    give_grads(params, 0)
    twins = [param.detach().clone().requires_grad_() for param in params]
    give_grads(twins, 0)
    squares = sum(float(param.grad.double().square().sum()) for param in params)
    coefficient = 0.5 / (math.sqrt(squares) + 1e-6)
    for twin in twins:
        set_grad(twin, twin.grad.float() * coefficient)
    half = len(twins) // 2
    plain = unclipped(
        case,
        [{"params": twins[:half]}, {"params": twins[half:], "lr": 0.2}],
        lr=0.01,
        backend=backend,
    )
    optimizer.step()
    plain.step()
    assert float(optimizer.grad_norm) == pytest.approx(math.sqrt(squares), rel=1e-6)
    assert_same(tensors_of(optimizer), tensors_of(plain), rtol=2e-6, atol=1e-7)


def test_bert_adam_clips_per_group_and_type() -> None:
    """Four norms: two groups of two types; grad_norm reports the norm of everything."""
    types = [torch.float32, torch.bfloat16]
    groups = [[make_params([(4, 3)], dtype, seed)[0] for dtype in types] for seed in (0, 1)]
    optimizer = CASES["bert_adam"].make(
        [
            {"params": group, "max_grad_norm": limit}
            for group, limit in zip(groups, [0.5, 2.0], strict=True)
        ],
        lr=0.01,
    )
    params = [param for group in groups for param in group]
    give_grads(params, 0)
    optimizer.step()
    norms = [float(param.grad.double().norm()) for param in params]
    for param, norm, limit in zip(params, norms, [0.5, 0.5, 2.0, 2.0], strict=True):
        expected = 0.1 * param.grad.float() * min(1.0, limit / (norm + 1e-6))
        torch.testing.assert_close(optimizer.state[param]["exp_avg"], expected)
    assert float(optimizer.grad_norm) == pytest.approx(math.hypot(*norms), rel=1e-6)


def test_lamb_clips_after_its_global_norm() -> None:
    """use_global_grad_norm divides by the norm; what is left has norm 1 and is clipped again."""
    both = CASES["lamb"].make(
        make_params(SHAPES), lr=0.01, use_global_grad_norm=True, max_grad_norm=0.25
    )
    once = CASES["lamb"].make(make_params(SHAPES), lr=0.01, max_grad_norm=0.25)
    for optimizer in (both, once):
        give_grads(optimizer.param_groups[0]["params"], 0)
        optimizer.step()
    # slack is added to 1 there and to the norm here
    assert_same(tensors_of(both), tensors_of(once), rtol=4e-6, atol=1e-9)
    assert torch.equal(both.grad_norm, once.grad_norm)


class NoWaiting(TorchDispatchMode):
    """Refuses to read the value of a tensor: on another device that would wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "the step reads a tensor"
        return func(*args, **(kwargs or {}))


@each_case
@pytest.mark.parametrize("backend", ["lists", "reference"])
def test_nobody_waits_for_the_norm(case: Case, backend: str) -> None:
    optimizer = case.make(make_params(SHAPES), lr=0.01, backend=backend, max_grad_norm=0.5)
    give_grads(optimizer.param_groups[0]["params"], 0)
    with NoWaiting():
        optimizer.step()
        with pytest.raises(AssertionError, match="reads a tensor"):
            float(optimizer.grad_norm)


def test_no_gradients_no_norm() -> None:
    optimizer = CASES["adamw"].make(make_params(SHAPES), lr=0.01, max_grad_norm=0.5)
    optimizer.step()
    assert float(optimizer.grad_norm) == 0 and not optimizer.state
    assert float(optimizer.clip_grad_norm_fused_(1.0)) == 0
