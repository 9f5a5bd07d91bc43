"""A long training run of every optimizer: memory, open handles and the time of a step stay as they are."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ingot.optim

PAGE = os.sysconf("SC_PAGE_SIZE")
# What the allocators of C and Python may take and keep for themselves after the warm-up. 0.5 MiB in 20,000 steps
# is 26 bytes per step, less than the smallest object.
MEMORY_SLACK = 512 * 1024
# Other programs on the machine make a block of steps slower as well, but hardly all of the last ones.
TIME_SLACK = 2.0
SAVE_EVERY = 500  # steps between saving and loading
WARM_UP = 1000


@dataclass(frozen=True)
class Reading:
    """What must not grow."""

    resident: int  # bytes
    handles: int  # open files, sockets and pipes
    blocks: int  # allocated by Python

    @staticmethod
    def now() -> Reading:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        return Reading(resident, len(os.listdir("/proc/self/fd")), sys.getallocatedblocks())


class Training:
    """A small net that is trained in all the ways a step can be made."""

    def __init__(self, kind: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2))
        params = list(self.net.parameters())
        groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
        self.optimizer = kind(groups, lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 100, 0.999)
        self.data = torch.randn(4, 8)
        self.done = 0

    def loss(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=self.done % 2 == 0)
        loss = self.net(self.data).square().mean()
        loss.backward()
        return loss

    def steps(self, count: int) -> None:
        """Steps, one in three with a closure, and now and then the state saved and loaded."""
        for _ in range(count):
            if self.done % 3 == 0:
                self.optimizer.step(self.loss)
            else:
                self.loss()
                self.optimizer.step()
            self.scheduler.step()
            self.done += 1
            if self.done % SAVE_EVERY == 0:
                self.optimizer.load_state_dict(self.optimizer.state_dict())


def soak(
    kind: Any, steps: int, block: int, warm_up: int = WARM_UP
) -> tuple[Reading, Reading, list[float]]:
    """Train; print memory, handles and time per step after every block.

    Returns:
        The first and the last reading, and the microseconds per step of every block.
    """
    training = Training(kind)
    training.steps(warm_up)
    first = last = Reading.now()
    times: list[float] = []
    for _ in range(steps // block):
        begun = time.perf_counter()
        training.steps(block)
        times.append((time.perf_counter() - begun) / block * 1e6)
        last = Reading.now()
        print(
            f"{kind.__name__:18} {training.done:8} steps {last.resident / 2**20:8.2f} MiB "
            f"{last.handles:4} handles {last.blocks:8} blocks {times[-1]:7.1f} us per step",
            flush=True,
        )
    assert all(torch.isfinite(param).all() for param in training.net.parameters())
    return first, last, times


def growth(first: Reading, last: Reading, times: Sequence[float] = ()) -> list[str]:
    """What grew."""
    found = []
    if last.resident - first.resident > MEMORY_SLACK:
        found.append(f"resident memory grew by {last.resident - first.resident} bytes")
    if last.handles > first.handles:
        found.append(f"open handles: {first.handles} before, {last.handles} after")
    half = len(times) // 2
    if half and min(times[-half:]) > TIME_SLACK * min(times[:half]):
        found.append(f"a step took {min(times[:half]):.1f} us, then {min(times[-half:]):.1f}")
    return found


def main() -> int:
    """All optimizers, one after the other; 1 if anything grew."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000, help="for all optimizers together")
    given = parser.parse_args()
    kinds = [getattr(ingot.optim, name) for name in ingot.optim.__all__]
    each = given.steps // len(kinds)
    failures = 0
    for kind in kinds:
        found = growth(*soak(kind, each, max(each // 5, 1)))
        failures += bool(found)
        print(f"{kind.__name__}: {'; '.join(found) or 'flat'}")
    print(f"{len(kinds) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
