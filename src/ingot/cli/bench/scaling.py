"""How the cost grows: from 1 M to 400 M parameters, and from 10 to 10,000 tensors."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence

from ingot.cli.bench import peers
from ingot.cli.bench.measure import Workload, race
from ingot.cli.bench.parts import Settings, enter, fits
from ingot.cli.bench.records import Row, row_of
from ingot.cli.bench.shapes import Shape, ShapeList
from ingot.cli.bench.show import Show

MILLIONS = (1, 2, 5, 10, 20, 50, 100, 200, 400)
COUNTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
SECONDS = 0.8


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


def run_scaling(
    optimizers: Sequence[str], settings: Settings, show: Show, quick: bool
) -> Iterator[Row]:
    """Our optimizers on shape lists that grow, each alone: nothing is compared here."""
    for part, ladder in ladders(quick):
        show.stage(f"Growth with the number of {part}")
        for shapes in ladder:
            late = time.monotonic() > settings.deadline
            reason = "the time is up" if late else fits(shapes, operands=5)
            if reason is not None:
                show.missing(f"{shapes.title} and larger", reason)
                break
            yield from run_rung(shapes, part, optimizers, settings, show)


def run_rung(
    shapes: ShapeList, part: str, optimizers: Sequence[str], settings: Settings, show: Show
) -> Iterator[Row]:
    """All optimizers on one size."""
    workload = Workload(shapes.shapes())
    for optimizer in optimizers:
        contestant = peers.ours(optimizer, settings.backend)
        entry = enter(contestant, workload, show)
        assert entry is not None
        rounds = race([entry], rounds=settings.rounds, seconds=SECONDS, tick=show.tick)
        yield row_of(entry, contestant, shapes, optimizer, part, rounds)
        del entry  # its states, before the next one's are made
        gc.collect()
