"""examples/fsdp2_train.py, killed in the middle and resumed, reaches the losses of the uninterrupted run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_train.py"
ARGUMENTS = ["--steps", "9", "--save-every", "3"]


def start(folder: Path, processes: int) -> subprocess.Popen[str]:
    """By torchrun, which ends all processes when one of them dies."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, str(EXAMPLE), *ARGUMENTS, "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def losses_of(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", text)}


def finish(folder: Path, processes: int) -> dict[int, float]:
    process = start(folder, processes)
    try:
        text, _ = process.communicate(timeout=1800)
    finally:
        process.kill()
    assert process.returncode == 0, text
    return losses_of(text)


def kill_after(folder: Path, step: int) -> dict[int, float]:
    """Kill one of two training processes, once a step is reached."""
    process = start(folder, 2)
    assert process.stdout is not None
    text = ""
    try:
        for line in process.stdout:
            text += line
            if f"step {step} loss" in line:
                os.kill(int(re.findall(r"process 1 of 2, pid (\d+)", text)[0]), signal.SIGKILL)
                break
        rest, _ = process.communicate(timeout=1800)
    finally:
        process.kill()
    assert process.returncode != 0, text + rest
    return losses_of(text)


def test_killed_and_resumed(tmp_path: Path) -> None:
    expected = finish(tmp_path / "whole", 2)
    assert list(expected) == list(range(1, 10)) and expected[9] < expected[1] - 0.5

    seen = kill_after(tmp_path / "killed", 5)
    assert seen == {step: expected[step] for step in seen} and 9 not in seen
    done = max(
        int(path.name.removeprefix("step-")) for path in (tmp_path / "killed").glob("step-*")
    )
    assert done in (3, 6)
    # A crash while writing leaves such a folder: it must not be taken for a checkpoint.
    (tmp_path / "killed" / "unfinished-9").mkdir()
    shutil.copytree(tmp_path / "killed", tmp_path / "elsewhere")

    resumed = finish(tmp_path / "killed", 2)
    assert resumed == {step: expected[step] for step in range(done + 1, 10)}
    # Another number of processes averages gradients in another order.
    resumed = finish(tmp_path / "elsewhere", 1)
    assert list(resumed) == list(range(done + 1, 10))
    for step, loss in resumed.items():
        assert loss == pytest.approx(expected[step], rel=1e-4)
