"""What ``optimizer.metrics()`` says of a step that Triton's kernels make equals what it says of the reference's."""

from typing import Any

import pytest

from cases import CASES
from ingot.metrics import Metrics
from training import SHAPES, make_params, train

STEPS = 3
# Norms are taken in other orders of summation: the largest difference seen is 1.3e-6.
NEAR = 4e-6
COMMON = {"grad_norm", "weight_norm", "update_norm", "update_ratio", "clip_coefficient"}


def tracked(name: str, backend: str, options: dict[str, Any]) -> list[Metrics]:
    """The metrics of every step."""
    params = make_params(SHAPES)
    optimizer = CASES[name].make(params, backend=backend, max_grad_norm=0.5, **options)
    found: list[Metrics] = []
    optimizer.track_metrics(1, found.append)
    train(optimizer, params, STEPS)
    return found


@pytest.mark.parametrize(
    ("name", "options", "own"),
    [
        ("adamw", {}, set()),
        ("lamb", {"weight_decay": 0.1}, {"trust_ratio"}),
        ("adamp", {}, {"projected_rows"}),
        ("adamp", {"delta": 100.0}, {"projected_rows"}),  # every row is projected
    ],
    ids=["adamw", "lamb", "adamp", "adamp, projected"],
)
def test_metrics(name: str, options: dict[str, Any], own: set[str]) -> None:
    runs = [tracked(name, backend, options) for backend in ("triton", "reference")]
    assert [metrics.step for metrics in runs[0]] == [1, 2, 3]
    for one, other in zip(*runs, strict=True):
        assert one.total_norm == pytest.approx(other.total_norm, rel=NEAR) and one.total_norm > 0
        assert one.clip_coefficient == pytest.approx(other.clip_coefficient, rel=NEAR)
        assert list(one) == list(other) and len(one) == len(SHAPES)
        for parameter, values in one.items():
            assert values.keys() == COMMON | own
            assert values == pytest.approx(other[parameter], rel=NEAR), parameter
    if name == "adamp":  # projections happen
        assert any(values["projected_rows"] == 1.0 for values in runs[0][-1].values())
