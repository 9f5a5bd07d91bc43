"""Tests here import from their own folder, and the processes of tests/distributed."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "distributed")]
