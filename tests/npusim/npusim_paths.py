"""Where things are, the type of the fixture `run`, and what it says, for the tests of the simulated NPU."""

import subprocess
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Present beside the repository in CI; the repository keeps no copy of them.
DOCUMENTS = ROOT.parent / "shared" / "documents"

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# What a process says when it gets the simulated NPU.
SIMULATED = "the NPU of this process is simulated"
