"""A step that runs out of memory has changed nothing, wherever it runs out, and can be made again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
def test_out_of_memory_at_any_place() -> None:
    # Without a fixed threshold, freed memory stays with the process and later steps need no more.
    fixed = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [sys.executable, "memory_limits.py"],
        cwd=HERE,
        env={**os.environ, **fixed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
