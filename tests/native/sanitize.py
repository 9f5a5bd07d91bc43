"""Builds the core with AddressSanitizer and UndefinedBehaviorSanitizer and runs its tests: `make asan`.

    python tests/native/sanitize.py [pytest arguments]

Any error of the sanitizers ends the process, so the exit status says whether the core is clean.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "asan"
COMPILER = os.environ.get("CXX", "c++")
# Only the tests that call the core in this process; those of several processes would sanitize their parent.
TESTS = ["parity", "layouts", "refusals", "measures", "blocks8"]
# An editable install puts its own finder before PYTHONPATH; the sanitized copy must come first.
RUN = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
import ingot._native, pytest
assert ingot._native.__file__.startswith({site!r}), ingot._native.__file__
sys.exit(pytest.main(sys.argv[1:]))
"""


def build() -> Path:
    """A copy of the package with the sanitized core in it. The kernels of one instruction set are enough."""
    subprocess.run(
        [
            *("cmake", "-S", str(ROOT), "-B", str(BUILD), f"-DPython_EXECUTABLE={sys.executable}"),
            *("-DINGOT_SANITIZE=address,undefined", "-DINGOT_X86=OFF"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", str(BUILD), "-j2"], check=True)
    site = BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "src", site, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(BUILD / "_native.abi3.so", site / "ingot")
    return site


def runtime(name: str) -> str:
    """Where the compiler keeps a sanitizer's library."""
    found = subprocess.run(
        [COMPILER, f"-print-file-name={name}"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def main() -> int:
    """Build, then run the tests under the sanitizers."""
    site = build()
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
        # Python's own allocations live until exit; torch's libraries define symbols twice.
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    here = Path(__file__).parent
    tests = [str(here / f"test_native_{name}.py") for name in TESTS]
    code = RUN.format(site=str(site))
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *tests, *sys.argv[1:]]
    return subprocess.run(command, env=environment, cwd=BUILD).returncode


if __name__ == "__main__":
    sys.exit(main())
