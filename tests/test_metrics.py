"""What ``optimizer.metrics()`` says equals an independent computation, and watching changes no bit of a step."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from cases import CASES, Case, Options, each_backend, each_case, each_setting
from ingot.metrics import Metrics
from ingot.optimizer import FusedOptimizer
from training import (
    assert_same,
    fit,
    give_grads,
    make_params,
    small_model,
    tensors_of,
    through_a_file,
    train,
    with_state,
)

# Gradients and weights are measured in double precision; sums between passes are of float32 products. The update is a
# difference of float32 numbers in both computations: the same difference.
NEAR = 2e-6


def norm(tensor: Tensor) -> float:
    """The 2-norm in double precision."""
    return tensor.detach().double().norm().item()


def name_of(number: int) -> str:
    return f"group0[{number}]"


def check_norms(
    metrics: Metrics, before: list[Tensor], after: list[Tensor], grads: list[Tensor]
) -> None:
    """The norms and the ratio of every parameter."""
    assert list(metrics) == [name_of(i) for i in range(len(before))]
    for number, (old, new, grad) in enumerate(zip(before, after, grads, strict=True)):
        found = metrics[name_of(number)]
        update = norm(new.detach().double() - old.double())
        assert found["grad_norm"] == pytest.approx(norm(grad), rel=NEAR), number
        assert found["weight_norm"] == pytest.approx(norm(old), rel=NEAR), number
        assert found["update_norm"] == pytest.approx(update, rel=NEAR), number
        expected = update / norm(old) if norm(old) else 0.0
        assert found["update_ratio"] == pytest.approx(expected, rel=2 * NEAR), number
    total = math.sqrt(sum(norm(grad) ** 2 for grad in grads))
    assert metrics.total_norm == pytest.approx(total, rel=NEAR)


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


def check_clipping(metrics: Metrics, optimizer: FusedOptimizer) -> None:
    """The coefficient is what the formula of each clipping makes of the total norm; there is one group and one type."""
    clips = optimizer.spec.clips(optimizer.param_groups[0])
    expected, left = 1.0, metrics.total_norm
    for clip in clips:
        factor = min(1.0, clip.max_norm / (left + clip.slack))
        expected, left = expected * factor, left * factor
    for values in metrics.values():
        assert ("clip_coefficient" in values) == bool(clips)
        if clips:
            assert values["clip_coefficient"] == pytest.approx(expected, rel=NEAR)
    if clips:
        assert metrics.clip_coefficient == pytest.approx(expected, rel=NEAR)
    else:
        assert metrics.clip_coefficient is None


def check_trust_ratios(
    metrics: Metrics, optimizer: FusedOptimizer, before: list[Tensor], done: int
) -> None:
    """LAMB's, in double precision from the states after the step."""
    if optimizer.spec.name != "lamb":
        assert not any("trust_ratio" in values for values in metrics.values())
        return
    group = optimizer.param_groups[0]
    beta1, beta2 = group["betas"]
    corrected = group["bias_correction"]
    limit = math.inf if group["max_weight_norm"] is None else group["max_weight_norm"]
    for number, (param, old) in enumerate(zip(optimizer.all_params(), before, strict=True)):
        first, second = (
            optimizer.state[param][name].double() for name in ("exp_avg", "exp_avg_sq")
        )
        if corrected:
            first, second = first / (1 - beta1 ** (done + 1)), second / (1 - beta2 ** (done + 1))
        update = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * old.double()
        weight_norm = min(norm(old), limit)
        usual = weight_norm and norm(update) and not group["adam"]
        expected = weight_norm / norm(update) if usual else 1.0
        assert metrics[name_of(number)]["trust_ratio"] == pytest.approx(expected, rel=1e-5)


def check_projected_rows(
    metrics: Metrics, optimizer: FusedOptimizer, before: list[Tensor], grads: list[Tensor]
) -> None:
    """AdamP's, from cosines: all rows if each is nearly orthogonal, or if the whole tensor is; else none."""
    if optimizer.spec.name != "adamp":
        assert not any("projected_rows" in values for values in metrics.values())
        return
    group = optimizer.param_groups[0]

    def far(weights: Tensor, grad: Tensor) -> Tensor:
        cosine = (weights * grad).sum(1).abs()
        cosine /= (weights.norm(dim=1) + group["eps"]) * (grad.norm(dim=1) + group["eps"])
        return cosine >= group["delta"] / math.sqrt(weights.shape[1])

    clip = metrics.clip_coefficient or 1.0
    for number, (old, grad) in enumerate(zip(before, grads, strict=True)):
        if old.numel() == 0 and old.ndim > 1:
            continue  # no rows, or rows of nothing
        expected = 0.0
        if old.ndim > 1:
            weights, slopes = old.double().flatten(1), grad.double().flatten(1) * clip
            by_row = not far(weights, slopes).any()
            whole = not far(weights.reshape(1, -1), slopes.reshape(1, -1)).any()
            expected = float(by_row or whole)
        assert metrics[name_of(number)]["projected_rows"] == expected, number


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


def test_steps_that_fail_or_are_skipped_leave_no_record() -> None:
    params, seen = make_params([(4, 3), (5,)]), []
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(every=2, to=seen.append)
    train(optimizer, params, 1)
    good = params[1].grad
    params[1].grad = torch.ones(5).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    params[1].grad = torch.full((5,), torch.inf)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    assert not seen and not optimizer.metrics() and optimizer.metrics().step == 0
    params[1].grad = good
    optimizer.step()
    assert [metrics.step for metrics in seen] == [2]


def test_steps_in_between_take_the_quick_path() -> None:
    pytest.importorskip("ingot._native")
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params, backend="native")
    steps: list[int] = []
    optimizer.track_metrics(every=5, to=lambda metrics: steps.append(metrics.step))
    train(optimizer, params, 6)
    quick: list[bool] = []
    for step in range(7, 21):
        give_grads(params, step)
        remembered = optimizer._quick
        assert remembered is not None
        taken = []

        def spy(*args: Any, real: Any = remembered.step, taken: list[Any] = taken) -> Any:
            taken.append(real(*args))
            return taken[-1]

        optimizer._quick = remembered._replace(step=spy)
        optimizer.step()
        if optimizer._quick is not None and optimizer._quick.step is spy:
            optimizer._quick = remembered
        quick.append(taken == [True])
    assert steps == [5, 10, 15, 20]
    assert quick == [step % 5 != 0 for step in range(7, 21)]


def test_tracking_can_be_stopped_and_is_off_at_first() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.Lamb(params)
    with pytest.raises(RuntimeError, match="track_metrics"):
        optimizer.metrics()
    optimizer.track_metrics(every=1)
    assert repr(optimizer.metrics()) == "Metrics: no tracked step yet"
    optimizer.track_metrics(None)
    train(optimizer, params, 2)
    with pytest.raises(RuntimeError, match="track_metrics"):
        optimizer.metrics()


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "50"])
def test_an_interval_that_is_none_is_refused(every: Any) -> None:
    optimizer = ingot.SGD(make_params([(3,)]), lr=0.1)
    with pytest.raises(ValueError, match="every must be None, or a whole number"):
        optimizer.track_metrics(every)


def test_steps_inside_backward_are_refused() -> None:
    optimizer = ingot.AdamW(make_params([(3,)]))
    optimizer.track_metrics(1)
    with pytest.raises(RuntimeError, match="track_metrics measures steps over all gradients"):
        optimizer.release_gradients()
    optimizer.track_metrics(None)
    with (
        optimizer.release_gradients(),
        pytest.raises(RuntimeError, match="track_metrics measures steps over all gradients"),
    ):
        optimizer.track_metrics(1)


def test_names() -> None:
    model = small_model()
    named = ingot.AdamW(model.named_parameters())
    told = ingot.AdamW(model.parameters())
    nameless = ingot.AdamW([{"params": [p]} for p in model.parameters()])
    named.track_metrics(1)
    told.track_metrics(1, names=model)
    nameless.track_metrics(1, names=[("first", next(model.parameters()))])
    model(torch.ones(1, 4)).sum().backward()
    for optimizer in (named, told, nameless):
        optimizer.step()
    expected = [name for name, _ in model.named_parameters()]
    assert list(named.metrics()) == list(told.metrics()) == expected
    assert list(nameless.metrics())[:3] == ["first", "group1[0]", "group2[0]"]
    with pytest.raises(TypeError, match=r"names must be a torch.nn.Module or pairs"):
        told.track_metrics(1, names=[1, 2])  # type: ignore[list-item]


def test_parameters_without_gradients_are_not_listed() -> None:
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(1)
    params[1].grad = torch.ones(5)
    optimizer.step()
    assert list(optimizer.metrics()) == [name_of(1)]


def test_a_parameter_that_stands_in_the_list_twice() -> None:
    param = make_params([(4, 3)])[0]
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = ingot.SGD([param, param], lr=0.1)
    optimizer.track_metrics(1)
    train(optimizer, [param], 1)
    assert list(optimizer.metrics()) == [name_of(0), name_of(1)]


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


def test_counting_goes_on_from_the_state() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    train(optimizer, params, 7)
    saved = through_a_file(optimizer.state_dict())
    steps: list[int] = []
    again = ingot.AdamW(params)
    again.track_metrics(5, to=lambda metrics: steps.append(metrics.step))
    again.load_state_dict(saved)
    train(again, params, 4)
    optimizer.track_metrics(5, to=lambda metrics: steps.append(metrics.step))
    train(optimizer, params, 4)
    assert steps == [10, 10]


def test_a_copy_goes_on_tracking_and_a_pickle_does_not() -> None:
    model, steps = small_model(), []
    optimizer = ingot.AdamW(model.named_parameters())
    optimizer.track_metrics(2, to=lambda metrics: steps.append(metrics.step))
    fit(model, optimizer, steps=3)
    copied_model, copy = deepcopy((model, optimizer))
    assert copy.metrics() == optimizer.metrics() and copy.metrics().step == 2
    fit(copied_model, copy, steps=1)
    assert steps == [2, 4] and optimizer.metrics().step == 2
    loaded = pickle.loads(pickle.dumps(optimizer))  # the function could not be pickled
    with pytest.raises(RuntimeError, match="track_metrics"):
        loaded.metrics()
    assert "track" not in str(optimizer.state_dict())


def test_the_table_of_a_step() -> None:
    model = small_model()
    optimizer = ingot.Lamb(model.named_parameters(), max_grad_norm=1e-3)
    optimizer.track_metrics(1)
    fit(model, optimizer, steps=1)
    head, columns, *rows = repr(optimizer.metrics()).splitlines()
    assert head.startswith("Metrics of step 1: total norm 1.7") and "clip coefficient 0.0" in head
    assert columns.split()[:3] == ["parameter", "grad_norm", "weight_norm"]
    assert "trust_ratio" in columns and "projected_rows" not in columns
    assert len(rows) == len(list(model.parameters()))
