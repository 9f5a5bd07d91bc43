"""The work of `ingot bench`: all parts one after the other, then the files and the tables."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from ingot import backends
from ingot.cli.bench import machine
from ingot.cli.bench.eight_bit import OPTIMIZERS as EIGHT_BIT
from ingot.cli.bench.eight_bit import PART as EIGHT_BIT_PART
from ingot.cli.bench.eight_bit import draw_eight_bit, eight_bit_tables, run_eight_bit
from ingot.cli.bench.memory import OPTIMIZERS as MEMORY
from ingot.cli.bench.memory import PART as MEMORY_PART
from ingot.cli.bench.memory import Trace, read_traces, run_memory, write_traces
from ingot.cli.bench.memory_show import draw_memory, memory_tables
from ingot.cli.bench.models import LISTS
from ingot.cli.bench.parts import Settings, fits, run_clip, run_precision, run_race
from ingot.cli.bench.picture import draw_race, draw_scaling
from ingot.cli.bench.quiet import QUIET
from ingot.cli.bench.records import Row, read_csv, write_csv
from ingot.cli.bench.scaling import chosen_of, run_scaling
from ingot.cli.bench.shapes import SHAPES
from ingot.cli.bench.show import Show, tables
from ingot.cli.bench.small import STEP, run_small, thread_counts
from ingot.cli.bench.small_show import draw_small, slower, small_tables
from ingot.cli.bench.traffic import (
    Count,
    draw_traffic,
    read_traffic,
    run_traffic,
    traffic_table,
    write_traffic,
)

# Operands alive at once: parameter, gradient, a copy of the gradient, the states of every contestant, the
# floor's tensors, and what a foreach implementation allocates in between.
RACE_OPERANDS = 22
# The parts of one picture each: it names the commits of its own rows, and a part may have been measured again.
PICTURED = (("race",), ("parameters", "tensors"), (STEP,), (MEMORY_PART,), (EIGHT_BIT_PART,))
INTERRUPTED = 130  # what a shell reports for Ctrl-C


def run(chosen: argparse.Namespace) -> int:
    """Measures and reports; after Ctrl-C reports what was finished. With ``--draw`` only draws."""
    if chosen.draw is not None:
        return redraw(chosen.draw)
    torch.set_num_threads(chosen.threads)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    backend = chosen.backend or backends.choose_for("cpu")[0]
    circumstances = {**machine.describe(), "backend": backend}
    console.print(", ".join(f"{k} {v}" for k, v in circumstances.items() if v), highlight=False)
    show = Show(console, stages(chosen))
    rows: list[Row] = []
    traces: list[Trace] = []
    counts: list[Count] = []
    status = 0
    try:
        with show:
            if "traffic" in chosen.parts:
                counts = run_traffic(chosen.optimizers, show)
            for row in measure(chosen, show, traces):
                rows.append(row)
    except KeyboardInterrupt:
        status = INTERRUPTED
        if not rows and not counts:
            console.print("Interrupted before the first race was over: nothing is written.")
            return status
    if counts:
        report_traffic(chosen.out, counts, circumstances, show)
    if rows or traces or not counts:
        report(chosen.out, rows, traces, circumstances, show)
    if status:
        console.print("Interrupted: only the races that were finished are written.")
    return status


def stages(chosen: argparse.Namespace) -> int:
    """How many races there are to run."""
    return (
        ("race" in chosen.parts) * len(chosen.shapes) * len(chosen.optimizers)
        + ("precision" in chosen.parts) * len(chosen.optimizers)
        + ("8bit" in chosen.parts) * len(asked_of(EIGHT_BIT, chosen))
        + ("clip" in chosen.parts) * 2
        + ("scaling" in chosen.parts) * 2
        + ("traffic" in chosen.parts) * len(chosen.optimizers)
        + ("small" in chosen.parts) * len(chosen.lists) * len(thread_counts(chosen.threads))
        + ("memory" in chosen.parts) * len(asked_of(MEMORY, chosen))
    )


def asked_of(
    measured: Sequence[str], chosen: argparse.Namespace, show: Show | None = None
) -> list[str]:
    """Of the optimizers that a part measures, those that ``--optimizers`` names; says so if it names others only."""
    asked = [name for name in measured if name in chosen.optimizers]
    if show is not None and not asked:
        show.missing(", ".join(chosen.optimizers), f"this part measures {', '.join(measured)}")
    return asked


def report_traffic(
    out: Path, counts: list[Count], circumstances: dict[str, str], show: Show
) -> None:
    """The same for what was counted."""
    out.mkdir(parents=True, exist_ok=True)
    write_traffic(out / "traffic.csv", counts, circumstances)
    draw_traffic(counts, circumstances, out / "traffic.png")
    show.console.print()
    show.console.print(traffic_table(counts))
    written = f"Written: {out / 'traffic.csv'}, {out / 'traffic.png'}"
    show.console.print(written, markup=False, highlight=False)


def report(
    out: Path, rows: list[Row], traces: list[Trace], circumstances: dict[str, str], show: Show
) -> None:
    """Writes the files and prints the tables."""
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "bench.csv", rows, circumstances)
    written = [out / "bench.csv"]
    if traces:
        write_traces(out / "memory.csv", traces)
        written.append(out / "memory.csv")
    written += draw(out, rows, traces, circumstances)
    shown = [*tables(rows), *eight_bit_tables(rows), *small_tables(rows), *memory_tables(rows)]
    for table in shown:
        show.console.print()
        show.console.print(table)
    lines = [f"Not taking part: {name}: {reason}" for name, reason in show.notes.items()]
    lines += slower(rows)
    busy = max((row.others_cpu or 0.0 for row in rows), default=0.0)
    if busy > QUIET:
        lines.append(
            f"Others used up to {busy:.0%} of the machine meanwhile: these times are rough."
        )
    lines.append(f"Written: {', '.join(map(str, written))}")
    for line in lines:
        show.console.print(line, markup=False, highlight=False)


def draw(
    out: Path, rows: list[Row], traces: list[Trace], circumstances: dict[str, str]
) -> list[Path]:
    """Every picture that there are results for."""
    pictures = (
        draw_race(rows, circumstances, out / "race.png"),
        draw_scaling(rows, circumstances, out / "scaling.png"),
        draw_small(rows, circumstances, out / "small.png"),
        draw_memory(traces, circumstances, out / "memory.png"),
        draw_eight_bit(rows, circumstances, out / "8bit.png"),
    )
    return [path for path in pictures if path is not None]


def redraw(folder: Path) -> int:
    """Draws the pictures again from the files of an earlier run; nothing is measured."""
    for parts in PICTURED:
        rows, circumstances = read_csv(folder / "bench.csv", parts)
        kept = folder / "memory.csv"
        drawn = MEMORY_PART in parts and bool(rows) and kept.exists()
        for path in draw(folder, rows, read_traces(kept) if drawn else [], circumstances):
            print(path)
    counted = folder / "traffic.csv"
    if counted.exists():
        print(draw_traffic(*read_traffic(counted), folder / "traffic.png"))
    return 0


def measure(chosen: argparse.Namespace, show: Show, traces: list[Trace]) -> Iterator[Row]:
    """All parts that were asked for, one after the other; a row comes out when its race is over."""
    deadline = time.monotonic() + 60 * chosen.minutes
    settings = Settings(
        chosen.rounds,
        chosen.seconds,
        chosen.backend,
        deadline,
        frozenset(chosen.without.split(",")),
        chosen.patience,
    )
    lists = [SHAPES[name] for name in chosen.shapes]
    if "race" in chosen.parts:
        for shapes in lists:
            reason = fits(shapes, RACE_OPERANDS)
            if reason is not None:
                show.missing(shapes.title, reason)
                continue
            yield from run_race(shapes, chosen.optimizers, settings, show)
    # The other comparisons are about large models: on the largest list there is.
    largest = max(lists, key=lambda shapes: shapes.parameters)
    if "precision" in chosen.parts:
        yield from run_precision(largest, chosen.optimizers, settings, show)
    if "8bit" in chosen.parts:
        yield from run_eight_bit(largest, asked_of(EIGHT_BIT, chosen, show), settings, show)
    if "clip" in chosen.parts:
        yield from run_clip(largest, settings, show)
    if "scaling" in chosen.parts:
        yield from run_scaling(chosen_of(chosen.optimizers), settings, show, chosen.quick)
    if "small" in chosen.parts:
        models = [LISTS[name] for name in chosen.lists]
        yield from run_small(models, chosen.optimizers, chosen.threads, settings, show)
    if "memory" in chosen.parts:
        yield from run_memory(asked_of(MEMORY, chosen, show), settings, show, traces)
