"""How the cost grows, ours and others': from 1 M to 400 M parameters, and from 10 to 10,000 tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

from ingot.cli.bench.measure import Workload, race
from ingot.cli.bench.parts import Settings, enter, fits, invited
from ingot.cli.bench.records import Row, row_of
from ingot.cli.bench.shapes import Shape, ShapeList
from ingot.cli.bench.show import Show

MILLIONS = (1, 2, 5, 10, 20, 50, 100, 200, 400)
COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
# One of the optimizers with one pass over the operands and one with two, as everybody else has them too.
OPTIMIZERS = ("adamw", "lamb")
SECONDS = 0.8
SECONDS_OF_PEERS = 0.4
PATIENCE = 250.0  # milliseconds: whoever takes longer for a step does not go on to the next size


def repeat(shape: Shape, count: int, key: str) -> ShapeList:
    """``count`` tensors of one shape."""

    def make() -> Iterator[Shape]:
        yield from [shape] * count

    return ShapeList(key, f"{count} x {shape}", make)


def ladders(quick: bool) -> list[tuple[str, list[ShapeList]]]:
    """The two series of shape lists, by the name of the part."""
    millions = MILLIONS[:4] if quick else MILLIONS
    counts = COUNTS[:7] if quick else COUNTS
    return [
        ("parameters", [repeat((1000, 1000), n, f"{n}M") for n in millions]),
        ("tensors", [repeat((16, 64), n, f"{n}x(16,64)") for n in counts]),
    ]


def chosen_of(optimizers: Sequence[str]) -> list[str]:
    """Those of ``OPTIMIZERS`` that were asked for; all that were asked for if there is none of them."""
    return [name for name in OPTIMIZERS if name in optimizers] or list(optimizers)


def run_scaling(
    optimizers: Sequence[str], settings: Settings, show: Show, quick: bool
) -> Iterator[Row]:
    """Everybody on shape lists that grow, one after the other: so much memory is needed only once."""
    for part, ladder in ladders(quick):
        show.stage(f"Growth with the number of {part}")
        slow: set[tuple[str, str]] = set()
        for shapes in ladder:
            late = time.monotonic() > settings.deadline
            reason = "the time is up" if late else fits(shapes, operands=5)
            if reason is not None:
                show.missing(f"{shapes.title} and larger", reason)
                break
            yield from run_rung(shapes, part, optimizers, settings, show, slow)


def run_rung(
    shapes: ShapeList,
    part: str,
    optimizers: Sequence[str],
    settings: Settings,
    show: Show,
    slow: set[tuple[str, str]],
) -> Iterator[Row]:
    """All who take part on one size, but for those in ``slow``; who is too slow for the next size is put there."""
    workload = Workload(shapes.shapes())
    for optimizer in optimizers:
        for contestant in invited(optimizer, settings, show):
            name = optimizer, contestant.name
            entry = None if name in slow else enter(contestant, workload, show)
            if entry is None:
                continue
            seconds = SECONDS if contestant.ours else SECONDS_OF_PEERS
            rounds = race([entry], rounds=settings.rounds, seconds=seconds, tick=show.tick)
            if entry.median > PATIENCE and not contestant.ours:
                slow.add(name)
            yield row_of(entry, contestant, shapes, optimizer, part, rounds)
            del entry  # its states, before the next one's are made
            gc.collect()
