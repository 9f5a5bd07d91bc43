"""The part "8bit" of the benchmark: states in 8 and 16 bits against float32 ones, in time and in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich.table import Table
from torch import Tensor

from ingot.backends import native
from ingot.cli.bench import floor, peers
from ingot.cli.bench.measure import Entry, Workload
from ingot.cli.bench.parts import Settings, run_rounds, try_out
from ingot.cli.bench.peers import TITLES, Contestant, from_module
from ingot.cli.bench.picture import LINE, OURS, THEIRS, headline
from ingot.cli.bench.records import FLOOR, Row, compare
from ingot.cli.bench.shapes import SHAPES, ShapeList
from ingot.cli.bench.show import Show, number, times

PART = "8bit"
OPTIMIZERS = ("adamw", "sgd", "lamb", "adamp")
FORMATS: dict[str, Any] = {"float32": None, "bfloat16": torch.bfloat16, "8bit": "8bit"}


def others(optimizer: str) -> list[Contestant]:
    """Other implementations with 8-bit states that run on the CPU."""
    if optimizer != "adamw":
        return []
    options = peers.OPTIONS[optimizer]
    return [
        Contestant(
            "bitsandbytes AdamW8bit",
            "bitsandbytes",
            from_module("bitsandbytes.optim", "AdamW8bit", **options),
        ),
        Contestant(
            "torchao AdamW8bit", "torchao", from_module("torchao.optim", "AdamW8bit", **options)
        ),
    ]


def run_eight_bit(
    shapes: ShapeList, optimizers: Sequence[str], settings: Settings, show: Show
) -> Iterator[Row]:
    """Our optimizers with states in three formats, others' with 8 bits, and the floor of 8 bits."""
    workload = Workload(shapes.shapes())
    for optimizer in optimizers:
        show.stage(f"{shapes.title}: {TITLES[optimizer]} with states in 8 bits")
        field = []
        kept: list[tuple[str, int | None]] = []
        for contestant, form in entrants(optimizer, settings):
            if contestant.package in settings.without:
                show.missing(contestant.name, "left out by --without")
                continue
            built = try_out(contestant, workload.params, show)
            if built is not None:
                field.append((contestant, Entry(contestant.name, built.step)))
                kept.append((form, state_bytes(built)))
        if floor.missing() is None:
            floor_entry = Entry(FLOOR, build_floor(optimizer, workload.grads))
            field.append((Contestant(FLOOR, "ingot"), floor_entry))
            kept.append(("8bit", None))
        seconds = settings.share(show.left)
        rows = run_rounds(field, shapes, optimizer, PART, settings, show, seconds)
        for row, (form, size) in zip(rows, kept, strict=True):
            row.dtype, row.state_bytes = form, size
        compare([row for row in rows if row.dtype == "8bit"])
        show.result(rows)
        yield from rows


def entrants(optimizer: str, settings: Settings) -> Iterator[tuple[Contestant, str]]:
    """Who takes part, and the format of the states."""
    for form, dtype in FORMATS.items():
        own = peers.ours(optimizer, settings.backend, state_dtype=dtype)
        yield Contestant(f"{own.name} {form}", "ingot", own.build, True), form
    for contestant in others(optimizer):
        yield contestant, "8bit"


def build_floor(optimizer: str, grads: Sequence[Tensor]) -> Any:
    """The memory traffic of a step with 8-bit states, in two sweeps: parameters and gradients; then the codes."""
    params = [torch.ones_like(grad) for grad in grads]
    count = floor.WRITTEN[optimizer] - 1
    codes = [[torch.ones(max(g.numel() // 4, 1)) for g in grads] for _ in range(count)]

    def step() -> None:
        native.floor([grads], [params])
        native.floor([], codes)

    return step


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The bytes of all tensors in the state that have more than one element."""
    return sum(bytes_of(value) for slots in optimizer.state.values() for value in slots.values())


def bytes_of(value: object) -> int:
    """Of a tensor; of a wrapper, those of the tensors in it that grow with it (not torchao's code book)."""
    if not isinstance(value, Tensor) or value.numel() <= 1:
        return 0
    if hasattr(value, "__tensor_flatten__"):
        inner = [getattr(value, name) for name in value.__tensor_flatten__()[0] if name != "qmap"]
        return sum(map(bytes_of, inner))
    # bitsandbytes keeps its code book, 256 numbers shared by all, beside the states of each parameter.
    return 0 if value.shape == (256,) and value.dtype is torch.float32 else value.nbytes


def eight_bit_tables(rows: Sequence[Row]) -> list[Table]:
    """One line per contestant."""
    found = [row for row in rows if row.part == PART]
    if not found:
        return []
    title = f"States in 8 bits, {SHAPES[found[0].shapes].title}: ms per step, best / median (floor / best)"
    table = Table(title=title, title_justify="left")
    for heading in ("", "", "ms", "bytes of state per parameter", "float32's time / this"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for row in found:
        size = "" if row.state_bytes is None else f"{row.state_bytes / row.parameters:.2f}"
        relative = f"{base_of(row, found).best_ms / row.best_ms:.2f}"
        name = TITLES[row.optimizer]
        table.add_row(
            name, row.contestant, times(row), size, relative, style="bold" if row.ours else ""
        )
    return [table]


def base_of(row: Row, rows: Sequence[Row]) -> Row:
    """Ours in float32, in the same race."""
    return next(r for r in rows if r.ours and r.dtype == "float32" and r.optimizer == row.optimizer)


def draw_eight_bit(
    rows: Sequence[Row], circumstances: Mapping[str, str], path: Path
) -> Path | None:
    """Left the time of a step, right the bytes of its states; one group of bars per optimizer."""
    found = [row for row in rows if row.part == PART and row.contestant != FLOOR]
    if not found:
        return None
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 1.8 + 0.3 * len(found)), sharey=True, layout="constrained"
    )
    places = list(range(len(found)))[::-1]
    colors = [OURS if row.ours else THEIRS for row in found]
    per_param = [(row.state_bytes or 0) / row.parameters for row in found]
    # Dots, not bars: a bar on a logarithmic scale begins anywhere.
    left.scatter([row.median_ms for row in found], places, c=colors, s=60, zorder=3)
    right.barh(places, per_param, color=colors, height=0.7)
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.xaxis.set_minor_formatter(NullFormatter())
    for panel, values in ((left, [row.median_ms for row in found]), (right, per_param)):
        for place, value in zip(places, values, strict=True):
            panel.annotate(
                number(value),
                (value, place),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        panel.grid(axis="x", color="#e2e8f0", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.margins(x=0.12)
    for row, place in zip(found, places, strict=True):
        if row.dtype == "float32" and place != places[0]:
            for panel in (left, right):
                panel.axhline(place + 0.5, color=LINE, linewidth=0.5)
    names = [f"{TITLES[row.optimizer]}: {row.contestant}" for row in found]
    left.set_yticks(places, names, fontsize=9)
    left.set_xlabel("ms per step, median, log scale")
    right.set_xlabel("bytes of state per parameter")
    title = f"States in 8 and 16 bits, {SHAPES[found[0].shapes].title}, float32 parameters"
    headline(figure, title, circumstances)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
