"""The command line of the fuzzer: ``make fuzz FUZZ_ARGS="--runs 10000 --seed 0"``."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz.formulas import KINDS
from fuzz.generate import Generator
from fuzz.run import run, shrink
from known_defects import AVOIDED


def main() -> int:
    """Run seeds one after the other; print what fails, made small; return 1 if anything did."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many seeds (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--stop-after", type=int, default=3, help="stop after so many failures")
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="one class only")
    parser.add_argument("--all", action="store_true", help="do not avoid known defects")
    given = parser.parse_args()
    avoid = frozenset() if given.all else frozenset(AVOIDED)
    steps, closest, failures, begun = 0, 0.0, 0, time.monotonic()
    elements = unbounded = 0
    for seed in range(given.seed, given.seed + given.runs):
        outcome = run(Generator(seed, avoid, kind=given.kind).scenario())
        steps, closest = steps + outcome.steps, max(closest, outcome.closest)
        elements, unbounded = elements + outcome.elements, unbounded + outcome.unbounded
        if outcome.failure is not None:
            failures += 1
            print(shrink(outcome.failure).report(), flush=True)
            if failures >= given.stop_after:
                break
        if (seed - given.seed + 1) % 500 == 0:
            print(
                f"{seed - given.seed + 1} runs, {steps} steps, {time.monotonic() - begun:.0f} s",
                flush=True,
            )
    runs = seed - given.seed + 1
    print(f"{runs} runs from seed {given.seed}, {steps} steps, {time.monotonic() - begun:.0f} s")
    print(f"avoided: {', '.join(sorted(avoid)) or 'nothing'}")
    print(f"the largest part of a bound that was used: {closest:.2f}")
    print(f"numbers compared: {elements}, of which without a bound: {unbounded}")
    print(f"{runs - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
