"""Scaling, clipping and rounding on another device than the CPU: the same numbers, one wait per step."""

import subprocess
import sys
from pathlib import Path


def test_on_the_simulated_npu() -> None:
    """In a process of its own: the simulated device cannot be taken away again."""
    program = Path(__file__).with_name("device_steps.py")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all the same" in done.stdout
