"""The values of ``optimizer.metrics()`` computed independently."""

from __future__ import annotations

import math

import pytest
from torch import Tensor

from ingot.metrics import Metrics
from ingot.optimizer import FusedOptimizer

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
