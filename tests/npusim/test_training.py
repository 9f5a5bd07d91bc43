"""A training script as Ascend users write it gives the losses of a CPU run, with every optimizer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from npusim_paths import ROOT, Run

from cases import CASES
from ingot.npusim.amp import GradScaler, autocast

EXAMPLE = ROOT / "examples" / "ascend_training.py"
NAMES = sorted(case.kind.__name__ for case in CASES.values())
STEPS = 10


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import ascend_training

    return ascend_training


def cpu_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


def cpu_autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.float16)


def test_the_example_knows_every_optimizer(example: ModuleType) -> None:
    assert sorted(example.OPTIONS) == NAMES


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", NAMES)
def test_full_precision(example: ModuleType, name: str, dynamic: bool) -> None:
    scaler = GradScaler(init_scale=1024.0, dynamic=dynamic)
    losses = example.train("npu:0", name, scaler, nullcontext, STEPS)
    expected = example.train("cpu", name, cpu_scaler(), nullcontext, STEPS)
    assert losses == pytest.approx(expected, rel=2e-6)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision(example: ModuleType, name: str, dynamic: bool) -> None:
    scaler = GradScaler(init_scale=1024.0, dynamic=dynamic)
    losses = example.train("npu:0", name, scaler, autocast, STEPS)
    # The CPU's autocast has lists of its own: some operators run in float16 there and in float32
    # here. One rounding in float16 is 5e-4 of a loss around 1.
    expected = example.train("cpu", name, cpu_scaler(), cpu_autocast, STEPS)
    assert losses == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert losses != pytest.approx(
        example.train("npu:0", name, scaler, nullcontext, STEPS), rel=1e-7
    )


@pytest.mark.parametrize("device", ["npu:0", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_resume(example: ModuleType, name: str, device: str, tmp_path: Path) -> None:
    make: Callable[[], Any] = GradScaler if device == "npu:0" else cpu_scaler
    mixed = autocast if device == "npu:0" else cpu_autocast
    whole = example.train(device, name, make(), mixed, STEPS)
    file = str(tmp_path / "checkpoint.pt")
    first = example.train(device, name, make(), mixed, 4, save=file)
    rest = example.train(device, name, make(), mixed, STEPS - 4, resume=file)
    assert first + rest == whole


def test_a_checkpoint_moves_between_devices(example: ModuleType, tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoint.pt")
    for name in NAMES:
        expected = example.train("cpu", name, cpu_scaler(), nullcontext, STEPS)
        example.train("npu:0", name, GradScaler(init_scale=1024.0), nullcontext, 5, save=file)
        losses = example.train("cpu", name, cpu_scaler(), nullcontext, STEPS - 5, resume=file)
        assert losses == pytest.approx(expected[5:], rel=2e-6), name


def test_overflow_in_the_middle(example: ModuleType) -> None:
    # With this scale the first losses overflow float16: the scale comes down until they do not.
    scaler = GradScaler(init_scale=2.0**24)
    losses = example.train("npu:0", "NpuFusedAdamW", scaler, autocast, 24)
    assert losses[0] == pytest.approx(
        example.train("npu:0", "NpuFusedAdamW", GradScaler(init_scale=1.0), autocast, 1)[0]
    )
    assert 1.0 <= scaler.get_scale() < 2.0**24
    assert losses[-1] < 0.9 * losses[0]


def test_the_script_itself(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoint.pt")
    args = [str(EXAMPLE), "--optimizer", "NpuFusedLamb", "--steps", "10"]
    done = run("-m", "ingot.npusim", *args, "--save", file)
    assert done.stdout.startswith("training on simulated NPU (ingot.npusim)\nstep  10  loss ")
    again = run(*args, "--static", "--resume", file, npusim="1")
    assert float(again.stdout.split()[-1]) < float(done.stdout.split()[-1])
