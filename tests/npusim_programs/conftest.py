"""Runs programs of other people in processes of their own, with and without the simulated NPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"

Launch = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Runs a program and returns the JSON of its last line."""

    def launch(program: str, *args: str, npusim: bool = True, processes: int = 1) -> dict[str, Any]:
        environment = {k: v for k, v in os.environ.items() if k != "INGOT_NPUSIM"}
        environment.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        if npusim:
            environment["INGOT_NPUSIM"] = "1"
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [sys.executable, *(torchrun if processes > 1 else []), str(PROGRAMS / program), *args],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    return launch
