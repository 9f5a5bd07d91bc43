"""Training to convergence: 16 bits done right end where float32 ends; plain rounding to nearest does not get there."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

STEPS = 1500
each_optimizer = pytest.mark.parametrize("optimizer", ["AdamW", "Lamb"])


@cache
def example() -> ModuleType:
    """The example that draws the plot of docs/precision.md: the same runs, shorter."""
    pytest.importorskip("sklearn")
    path = Path(__file__).parents[2] / "examples" / "bf16_convergence.py"
    spec = importlib.util.spec_from_file_location("bf16_convergence", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def final_loss(optimizer: str, setting: str) -> float:
    curve = example().train(optimizer, example().SETTINGS[setting], STEPS, every=STEPS)
    loss: float = curve[-1][1]
    return loss


@each_optimizer
def test_float32_learns(optimizer: str) -> None:
    """From 2.3, the loss of a guess: 0.235 for AdamW, 0.417 for Lamb."""
    assert final_loss(optimizer, "float32") < 0.5


@each_optimizer
def test_master_weights_are_as_good_as_float32(optimizer: str) -> None:
    """Only gradients are rounded: within 0.4 % here, 3 % allowed."""
    assert final_loss(optimizer, "masters") == pytest.approx(
        final_loss(optimizer, "float32"), rel=0.03
    )


@each_optimizer
def test_stochastic_rounding_is_as_good_as_float32(optimizer: str) -> None:
    """Five seeds lie between -11 % and +1 %; 20 % is allowed. Truncation, or the same bits each step, misses it."""
    assert final_loss(optimizer, "stochastic") == pytest.approx(
        final_loss(optimizer, "float32"), rel=0.2
    )


@each_optimizer
@pytest.mark.parametrize("setting", ["nearest", "float32 states"])
def test_rounding_to_nearest_loses_small_steps(optimizer: str, setting: str) -> None:
    """Five times the loss of float32 here; at least three times, or the other tests prove nothing."""
    assert final_loss(optimizer, setting) > 3 * final_loss(optimizer, "float32")
