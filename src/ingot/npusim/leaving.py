"""Lets torch's threads of C++ come to rest before Python shuts down.

In Python before 3.14, a thread of C++ that asks for Python's lock while the interpreter shuts down is unwound, and C++
aborts the process: "terminate called without an active exception" (torch 2.13, issues 38228 and 190489). On the
simulated NPU the threads of autograd ask for it: kernels are written in Python, and what a backward pass leaves
behind is released by such a thread, perhaps after ``backward()`` has returned.
"""

import atexit
import time
from pathlib import Path

# Seconds to wait at the end of a process, at most.
PATIENCE = 5.0
_TASKS = Path("/proc/self/task")


def register() -> None:
    """Has the process wait for the threads of autograd when it ends."""
    atexit.register(let_autograd_rest)


def let_autograd_rest() -> None:
    """Waits until no thread of autograd has run for some milliseconds during which Python's lock was free.

    Only Linux tells what threads do; elsewhere this returns at once.
    """
    deadline = time.monotonic() + PATIENCE
    seen, quiet = _activity(), 0
    while seen and quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.001)  # without the lock: a thread that waits for it runs now
        last, seen = seen, _activity()
        quiet = quiet + 1 if last == seen and all(is_asleep(status) for status in seen) else 0


def is_asleep(status: str) -> bool:
    """Whether the thread waits for something, neither running nor ready to."""
    return "\nState:\tS" in status


def _activity() -> list[str]:
    """What the system says of each thread of autograd; it counts how often a thread went to sleep."""
    found = []
    for status in sorted(_TASKS.glob("*/status")):
        try:
            text = status.read_text()
        except OSError:
            continue  # the thread has ended
        if text.startswith("Name:\tpt_autograd"):
            lines = [
                line
                for line in text.splitlines()
                if line.startswith(("Pid", "State", "vol", "nonvol"))
            ]
            found.append("\n" + "\n".join(lines))
    return found
