"""Triton's kernels, run as Python on the CPU: only with TRITON_INTERPRET=1, in a process without other tests.

Triton reads that variable when it is imported, and interprets or compiles everything from then on.
"""

import os
import sys
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]

if INTERPRETED:
    sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))  # for its processes
    pytest.importorskip("triton")
    import quick_interpreter

    quick_interpreter.install()
