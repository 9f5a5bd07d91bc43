"""Prints by how many KB the peak of memory rises during one step over some 60 MB of parameters, per optimizer."""

from __future__ import annotations

from pathlib import Path

from native_buckets import random_bucket, run_native


def status(field: str) -> int:
    """A line of /proc/self/status, in KB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


if __name__ == "__main__":
    for name in ("adamw", "lamb", "adamp"):
        # Threads and their stacks are there already, what two-pass optimizers keep is not.
        run_native(random_bucket("adamw", [(700, 300), (16, 64)] * 4))
        bucket = random_bucket(
            name, [(30522, 256), (4096, 1024), (4000000,), *[(8192, 8), (4096, 8)] * 20]
        )
        for state in bucket.states:
            for tensor in state:
                tensor.add_(0)  # zeros that were never touched are not in memory yet
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is in use now
        before = status("VmRSS")
        run_native(bucket)
        print(status("VmHWM") - before)
