"""`ingot bench`: times the optimizers against other implementations and the memory floor."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from ingot import backends

try:
    from rich.console import Console

    from ingot.cli.bench import machine
    from ingot.cli.bench.parts import Settings, fits, run_clip, run_precision, run_race
    from ingot.cli.bench.peers import TITLES
    from ingot.cli.bench.picture import draw_race, draw_scaling
    from ingot.cli.bench.quiet import QUIET
    from ingot.cli.bench.records import Row, write_csv
    from ingot.cli.bench.scaling import run_scaling
    from ingot.cli.bench.shapes import DEFAULT, SHAPES
    from ingot.cli.bench.show import Show, tables
except ModuleNotFoundError as error:
    raise SystemExit(
        f"ingot bench needs {error.name}, which is not installed: pip install 'ingot[bench]'"
    ) from error

PARTS = ("race", "precision", "clip", "scaling")
# Operands alive at once: parameter, gradient, a copy of the gradient, the states of every contestant, the
# floor's tensors, and what a foreach implementation allocates in between.
RACE_OPERANDS = 22
PATIENCE = "seconds to wait before each race until the machine is quiet (default %(default)s)"


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="ingot bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, no BERT-base: a minute")
    parser.add_argument("--shapes", help=f"some of {', '.join(SHAPES)}, with commas")
    parser.add_argument("--optimizers", help=f"some of {', '.join(TITLES)}, with commas")
    parser.add_argument("--parts", help=f"some of {', '.join(PARTS)}, with commas")
    parser.add_argument("--without", default="", help="packages to leave out, with commas")
    parser.add_argument("--rounds", type=int, help="rounds per race (default: by the clock)")
    parser.add_argument(
        "--seconds", type=float, default=14.0, help="per race (default %(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=11.0, help="in all (default %(default)s)")
    parser.add_argument("--patience", type=float, default=0.0, help=PATIENCE)
    parser.add_argument("--threads", type=int, default=machine.cores(), help="default: all cores")
    parser.add_argument("--backend", help="Ingot's backend (default: its own choice)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="default %(default)s")
    chosen = parser.parse_args(arguments)
    quick_shapes = tuple(name for name in DEFAULT if name != "bert-base")
    chosen.shapes = pick(
        parser, chosen.shapes, tuple(SHAPES), quick_shapes if chosen.quick else DEFAULT
    )
    chosen.optimizers = pick(parser, chosen.optimizers, tuple(TITLES), tuple(TITLES))
    chosen.parts = pick(parser, chosen.parts, PARTS, PARTS)
    if chosen.quick:
        chosen.seconds = min(chosen.seconds, 2.0)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    return chosen


def pick(
    parser: argparse.ArgumentParser,
    text: str | None,
    known: tuple[str, ...],
    default: tuple[str, ...],
) -> tuple[str, ...]:
    """The names in a list with commas, in the order they are known."""
    if text is None:
        return default
    asked = [name.strip() for name in text.split(",") if name.strip()]
    strange = [name for name in asked if name not in known]
    if strange or not asked:
        parser.error(f"{', '.join(strange) or 'nothing'}: choose from {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints its tables, and writes bench.csv and pictures to ``--out``."""
    chosen = parse(arguments)
    torch.set_num_threads(chosen.threads)
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    backend = chosen.backend or backends.choose_for("cpu")[0]
    circumstances = {**machine.describe(), "backend": backend}
    console.print(", ".join(f"{k} {v}" for k, v in circumstances.items() if v), highlight=False)
    races = ["race"] if "race" in chosen.parts else []
    stages = (
        len(races) * len(chosen.shapes) * len(chosen.optimizers)
        + ("precision" in chosen.parts) * len(chosen.optimizers)
        + ("clip" in chosen.parts) * 2
        + ("scaling" in chosen.parts) * 2
    )
    with Show(console, stages) as show:
        rows = measure(chosen, show)
    report(chosen.out, rows, circumstances, show)
    return 0


def report(out: Path, rows: list[Row], circumstances: dict[str, str], show: Show) -> None:
    """Writes the files and prints the tables."""
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "bench.csv", rows, circumstances)
    pictures = (
        draw_race(rows, circumstances, out / "race.png"),
        draw_scaling(rows, circumstances, out / "scaling.png"),
    )
    for table in tables(rows):
        show.console.print()
        show.console.print(table)
    lines = [f"Not taking part: {name}: {reason}" for name, reason in show.notes.items()]
    busy = max((row.others_cpu or 0.0 for row in rows), default=0.0)
    if busy > QUIET:
        lines.append(
            f"Others used up to {busy:.0%} of the machine meanwhile: these times are rough."
        )
    written = [out / "bench.csv", *(path for path in pictures if path is not None)]
    lines.append(f"Written: {', '.join(map(str, written))}")
    for line in lines:
        show.console.print(line, markup=False, highlight=False)


def measure(chosen: argparse.Namespace, show: Show) -> list[Row]:
    """All parts that were asked for, one after the other."""
    deadline = time.monotonic() + 60 * chosen.minutes
    settings = Settings(
        chosen.rounds,
        chosen.seconds,
        chosen.backend,
        deadline,
        frozenset(chosen.without.split(",")),
        chosen.patience,
    )
    rows: list[Row] = []
    lists = [SHAPES[name] for name in chosen.shapes]
    if "race" in chosen.parts:
        for shapes in lists:
            reason = fits(shapes, RACE_OPERANDS)
            if reason is not None:
                show.missing(shapes.title, reason)
                continue
            rows += run_race(shapes, chosen.optimizers, settings, show)
    # The other comparisons are about large models: on the largest list there is.
    largest = max(lists, key=lambda shapes: shapes.parameters)
    if "precision" in chosen.parts:
        rows += run_precision(largest, chosen.optimizers, settings, show)
    if "clip" in chosen.parts:
        rows += run_clip(largest, settings, show)
    if "scaling" in chosen.parts:
        rows += run_scaling(chosen.optimizers, settings, show, chosen.quick)
    return rows
