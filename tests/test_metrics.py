"""What ``optimizer.metrics()`` says equals an independent computation, and watching changes no bit of a step."""

from __future__ import annotations

import math

import pytest
import torch

import ingot
from cases import CASES, Case, Options, each_backend, each_case, each_setting
from metrics_checks import (
    NEAR,
    check_clipping,
    check_norms,
    check_projected_rows,
    check_trust_ratios,
    name_of,
    norm,
)
from training import assert_same, give_grads, make_params, tensors_of, train, with_state


@each_backend
@each_setting
def test_values_are_right_and_the_step_is_the_same(
    case: Case, options: Options, backend: str
) -> None:
    params, others = make_params(), make_params()
    watched, plain = (case.make(p, backend=backend, **options) for p in (params, others))
    watched.track_metrics(every=1)
    for step in range(3):
        before = [param.detach().clone() for param in params]
        train(watched, params, 1, first=step)
        train(plain, others, 1, first=step)
        metrics = watched.metrics()
        assert metrics.step == step + 1
        grads = [param.grad for param in params if param.grad is not None]
        check_norms(metrics, before, params, grads)
        assert_same(tensors_of(watched), tensors_of(plain))
        check_clipping(metrics, watched)
        check_trust_ratios(metrics, watched, before, step)
        check_projected_rows(metrics, watched, before, grads)


@each_backend
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_updates_that_rounding_swallows_are_not_counted(backend: str, rounding: str) -> None:
    params = [torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))]
    optimizer = ingot.AdamW(params, lr=1e-4, weight_decay=0, backend=backend, rounding=rounding)
    optimizer.track_metrics(every=1)
    train(optimizer, params, 1)
    change = norm(params[0].detach().double() - 1)
    assert optimizer.metrics()[name_of(0)]["update_norm"] == pytest.approx(change, rel=NEAR)
    assert (change == 0) == (rounding == "nearest")


@each_backend
@each_case
def test_master_weights_are_what_is_measured(case: Case, backend: str) -> None:
    params = make_params(dtype=torch.bfloat16)
    optimizer = with_state(case, params, lr=1e-4, master_weights=True, backend=backend)
    train(optimizer, params, 1)
    optimizer.track_metrics(every=1)
    before = [optimizer.state[param]["master_param"].clone() for param in params]
    train(optimizer, params, 1, first=1)
    after = [optimizer.state[param]["master_param"] for param in params]
    check_norms(optimizer.metrics(), before, after, [p.grad for p in params if p.grad is not None])


@each_backend
@pytest.mark.parametrize("name", ["adamw", "lamb", "adamp"])
def test_gradients_are_reported_unscaled_and_before_clipping(name: str, backend: str) -> None:
    params = make_params([(4, 3), (5,)])
    optimizer = CASES[name].make(params, max_grad_norm=0.5, backend=backend)
    optimizer.track_metrics(every=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [param.detach().clone() for param in params]
    give_grads(params, 0)
    unscaled = [param.grad.clone() for param in params if param.grad is not None]
    for param in params:
        param.grad = param.grad * 1024.0
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    check_norms(optimizer.metrics(), before, params, unscaled)
    check_clipping(optimizer.metrics(), optimizer)


def test_clip_coefficients_of_several_groups() -> None:
    params = make_params([(4, 3), (5,)])
    groups = [
        {"params": [param], "max_grad_norm": m} for param, m in zip(params, (0.5, 1e9), strict=True)
    ]
    optimizer = ingot.BertAdam(groups)
    optimizer.track_metrics(every=1)
    train(optimizer, params, 1)
    first, second = (values["clip_coefficient"] for values in optimizer.metrics().values())
    assert first == pytest.approx(0.5 / (norm(params[0].grad) + 1e-6)) and second == 1.0
    assert optimizer.metrics().clip_coefficient == first


@each_case
def test_a_zero_weight_has_an_infinite_ratio(case: Case) -> None:
    """Only where the step moves it: the update of RMSprop's kind is not 0 there, the weight is."""
    params = [torch.nn.Parameter(torch.zeros(3))]
    optimizer = case.make(params)
    optimizer.track_metrics(1)
    train(optimizer, params, 1)
    moved = bool(params[0].detach().any())
    assert optimizer.metrics()[name_of(0)]["update_ratio"] == (math.inf if moved else 0.0)


def test_what_is_not_a_number_is_recorded_as_such() -> None:
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(1)
    give_grads(params, 0)
    params[0].grad[0, 0] = torch.nan
    optimizer.step()
    broken, fine = optimizer.metrics().values()
    assert math.isnan(broken["grad_norm"]) and math.isnan(broken["update_norm"])
    assert math.isfinite(fine["update_ratio"]) and math.isnan(optimizer.metrics().total_norm)


def test_complex_parameters() -> None:
    param = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
    optimizer = ingot.SGD([param], lr=0.1)
    optimizer.track_metrics(1)
    before, param.grad = param.detach().clone(), torch.randn_like(param)
    optimizer.step()
    found = optimizer.metrics()[name_of(0)]
    assert found["grad_norm"] == pytest.approx(param.grad.norm().item(), rel=NEAR)
    assert found["update_norm"] == pytest.approx((param - before).norm().item(), rel=NEAR)
