"""Host time of planning a step on a device without the native core: the simulated NPU, in the steady state.

    python benchmarks/planning.py
    python benchmarks/planning.py --optimizers NpuFusedAdamW --profile     # and where the time goes

Only ``optimizer._plan()`` is timed: who belongs together, what is there now, and the backend's preparation. It makes no
tensors and waits for no device, so the figure is what a real device's host would need, on a processor like this one. It
is wall-clock time: on a busy machine only the best says something.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time

import torch

import ingot.npusim
from ingot import optim
from ingot.optimizer import FusedOptimizer

WARM_UP = 4  # steps: the first makes the states, the next ones settle the plan


def make(name: str, tensors: int) -> FusedOptimizer:
    """An optimizer over small tensors on the NPU that has made some steps."""
    params = [torch.nn.Parameter(torch.ones(16, 64, device="npu")) for _ in range(tensors)]
    for param in params:
        param.grad = torch.full_like(param, 0.01)
    optimizer: FusedOptimizer = getattr(optim, name)(params, lr=1e-3)
    for _ in range(WARM_UP):
        optimizer.step()
    return optimizer


def samples(optimizer: FusedOptimizer, rounds: int) -> list[float]:
    """Milliseconds of planning, ``rounds`` times."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        optimizer._plan()
        found.append(1e3 * (time.perf_counter() - start))
    assert optimizer._planner.recalled, "not the steady state: everything was surveyed anew"
    return found


def show_profile(optimizer: FusedOptimizer, rounds: int) -> None:
    """Where the time goes, by function, without what each calls."""
    profile = cProfile.Profile()
    profile.runcall(samples, optimizer, rounds)
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tensors", type=int, default=1000, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=200, help="default %(default)s")
    parser.add_argument("--optimizers", default=",".join(optim.__all__), help="names, with commas")
    parser.add_argument("--profile", action="store_true", help="print a profile of each")
    chosen = parser.parse_args()
    names = chosen.optimizers.split(",")
    for name in names:
        if name not in optim.__all__:
            parser.error(f"--optimizers: {name} is not one of {', '.join(optim.__all__)}")
    if chosen.tensors < 1 or chosen.rounds < 1:
        parser.error("--tensors and --rounds must be at least 1")
    ingot.npusim.install()
    print(f"Planning {chosen.tensors} tensors on npu, ms of host time per step: best, median")
    for name in names:
        optimizer = make(name, chosen.tensors)
        found = samples(optimizer, chosen.rounds)
        backend = optimizer._plan()[0].backend.name
        print(f"{name:20} {min(found):8.3f} {statistics.median(found):8.3f}   {backend}")
        if chosen.profile:
            show_profile(optimizer, chosen.rounds)


if __name__ == "__main__":
    main()
