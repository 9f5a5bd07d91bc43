"""The machine, the versions and the commit a measurement belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import torch

import ingot


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_bytes() -> int | None:
    """Memory that can be had without swapping, None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    return sizes[0] * 1024 if sizes else None


def commit() -> str:
    """The commit of the source tree the package runs from, with a mark if it was changed since."""
    folder = Path(ingot.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):
            return ""  # installed inside somebody else's repository
        mark = "+changes" if git("status", "--porcelain", "--untracked-files=no", ".") else ""
        return git("rev-parse", "--short=12", "HEAD") + mark
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe() -> dict[str, str]:
    """What every row of the CSV says about its circumstances."""
    return {
        "cpu": cpu_model(),
        "cores": str(cores()),
        "threads": str(torch.get_num_threads()),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ingot": ingot.__version__,
        "commit": commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
    }
