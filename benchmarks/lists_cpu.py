"""Times the lists backend on the CPU against torch's foreach; LAMB and AdamP against packages that loop over tensors.

    python benchmarks/lists_cpu.py                        the table of docs/accelerators.md, one thread
    python benchmarks/lists_cpu.py --with-core            the native core plans the steps and finds norms
    python benchmarks/lists_cpu.py --threads 2
    python benchmarks/lists_cpu.py --rounds-of 16,18,20   with other sizes of rounds, as powers of two

All contestants of a line step in turns, in one process, over the same parameters; the best step of each counts. With
one thread processor time is taken, which other processes disturb least; with more threads wall-clock time.

The native core is hidden, as if it had not been built: this backend makes the steps on the CPU only where the core is
missing, and the core would make its planning quicker. torch's optimizers and the packages do not use it. A package
that is not installed is left out, and a line says so; requirements-bench.txt has them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import cache
from math import inf, log2
from typing import Any

import torch
from torch.nn import Parameter

from ingot import backends
from ingot.backends import operands
from ingot.cli.bench import peers

LISTS = {
    "60 of (256, 256)": [(256, 256)] * 60,
    "12 of (768, 3072)": [(768, 3072)] * 12,
    "1000 of (16, 64)": [(16, 64)] * 1000,
}
# What ours are compared with; torch has no LAMB and no AdamP.
OTHERS = dict.fromkeys(["adamw", "adam", "sgd", "rmsprop", "adadelta"], "torch foreach")
OTHERS |= {"lamb": "torch_optimizer", "adamp": "adamp"}
WARM_UP = 2  # steps: the first makes the states


def hide_core() -> None:
    """Let no part of the package find the native core, which every use asks about in this way."""
    type(backends.NATIVE).unavailable = lambda self: "hidden by benchmarks/lists_cpu.py"  # type: ignore[method-assign]


def contestants(optimizer: str, sizes: list[int]) -> dict[str, tuple[Any, int]]:
    """What makes each optimizer, and the size of its rounds."""
    found = {each.name: each for each in peers.peers(optimizer)}
    others = [OTHERS[optimizer]] if OTHERS[optimizer] in found else []
    own = {f"lists, 2^{size}": (peers.ours(optimizer, "lists"), 1 << size) for size in sizes}
    return {name: (found[name], 0) for name in others} | own


@cache
def say_once(text: str) -> None:
    """Print a line, but not for every list of tensors."""
    print(text, flush=True)


def race(optimizer: str, shapes: list[tuple[int, ...]], chosen: argparse.Namespace) -> Any:
    """The best seconds of each contestant."""
    clock: Callable[[], float] = time.process_time if chosen.threads == 1 else time.perf_counter
    params = [Parameter(torch.randn(shape)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    made = {}
    for name, (each, size) in contestants(optimizer, chosen.rounds_of).items():
        try:
            made[name] = each.build(params), size
        except Exception as error:  # whatever a stranger's package raises
            if each.ours:
                raise
            say_once(
                f"not taking part: {name}: {(str(error) or type(error).__name__).splitlines()[0]}"
            )
    best = dict.fromkeys(made, inf)
    end = time.monotonic() + chosen.seconds
    turn = 0
    while turn < WARM_UP + 3 or time.monotonic() < end:
        for name, (each, size) in made.items():
            operands.ROUND_ON_CPU = size
            start = clock()
            each.step()
            taken = clock() - start
            best[name] = min(best[name], taken if turn >= WARM_UP else inf)
        turn += 1
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1, help="default %(default)s")
    parser.add_argument("--with-core", action="store_true", help="do not hide the native core")
    parser.add_argument("--seconds", type=float, default=8.0, help="per race (default %(default)s)")
    parser.add_argument("--optimizers", default=",".join(OTHERS), help="default %(default)s")
    parser.add_argument(
        "--rounds-of",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[int(log2(operands.ROUND_ON_CPU))],
        help="elements taken at a time, as powers of two (default: what the backend takes)",
    )
    chosen = parser.parse_args()
    if not chosen.with_core:
        hide_core()
    torch.set_num_threads(chosen.threads)
    warnings.simplefilter("ignore")
    core = "hidden" if backends.NATIVE.unavailable() is not None else "in use"
    print(
        f"Best milliseconds of a float32 step, {chosen.threads} thread(s), native core {core}, "
        f"torch {torch.__version__}"
    )
    for optimizer in chosen.optimizers.split(","):
        for title, shapes in LISTS.items():
            best = race(optimizer, shapes, chosen)
            cells = [f"{name}: {1e3 * seconds:.1f}" for name, seconds in best.items()]
            print(f"| {peers.TITLES[optimizer]} | {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
