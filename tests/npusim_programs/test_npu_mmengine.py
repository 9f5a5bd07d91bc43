"""MMEngine on the simulated NPU: finds the device, registers and runs the optimizers, resumes."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("wrapper", ["OptimWrapper", "AmpOptimWrapper"])
def test_runner(launch: Any, tmp_path: Path, wrapper: str) -> None:
    found = launch("train_mmengine.py", str(tmp_path), "all", wrapper)
    assert found["device"] == "npu"
    from ingot import optim

    assert found["registered"] == sorted(optim.__all__)
    assert sorted(found["runs"]) == sorted(optim.__all__)
    for name, run in found["runs"].items():
        assert run["class"].startswith("ingot.optim.") and run["class"].endswith(f".{name}")
        assert run["is_registered"] and run["devices"] == ["npu:0"] and run["resumed"], name
        assert len(run["losses"]) == 16 and run["losses"][-1] < 0.95 * run["losses"][0], name


def test_the_numbers_are_those_of_the_cpu(launch: Any, tmp_path: Path) -> None:
    ours = launch("train_mmengine.py", str(tmp_path / "npu"), "NpuFusedAdamW,NpuFusedSGD")["runs"]
    cpu = launch("train_mmengine.py", str(tmp_path / "cpu"), "AdamW,SGD", npusim=False)
    assert cpu["device"] == "cpu" and cpu["registered"] == []
    for name, run in cpu["runs"].items():
        assert run["devices"] == ["cpu"]
        assert ours[f"NpuFused{name}"]["losses"] == pytest.approx(run["losses"], rel=1e-5)
