"""How busy others keep the machine: a measurement among noisy neighbours should say so, or wait."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.05  # others may use this share of all cores
WATCH = 2.0  # seconds to look before saying that it is quiet


@dataclass(frozen=True)
class Clock:
    """Processor time so far, in seconds over all cores."""

    total: float
    busy: float
    own: float

    @classmethod
    def read(cls) -> Clock | None:
        """The clock now; None where the system does not tell."""
        try:
            line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        except OSError:
            return None
        user, nice, system, idle, waiting, *rest = (
            int(field) / os.sysconf("SC_CLK_TCK") for field in line.split()[1:9]
        )
        times = os.times()
        # What the hypervisor gave to others (the last of the rest) is missing here as well: busy.
        busy = user + nice + system + sum(rest)
        return cls(busy + idle + waiting, busy, times.user + times.system)


def others(before: Clock | None, after: Clock | None) -> float | None:
    """The share of all cores that others used between two readings."""
    if before is None or after is None or after.total <= before.total:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return max(0.0, used / (after.total - before.total))


def wait(patience: float) -> None:
    """Returns when others leave the machine alone, or after ``patience`` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = Clock.read()
        time.sleep(WATCH)
        share = others(before, Clock.read())
        if share is None or share <= QUIET:
            return
