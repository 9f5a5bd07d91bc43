"""What is shown of small models: tables of everything, tables of ratios, and a picture of the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from rich.table import Table

from ingot.cli.bench.models import LISTS
from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.picture import LINE, OURS, THEIRS, headline
from ingot.cli.bench.records import SMALL_FLOOR, Row
from ingot.cli.bench.show import micro, ratio
from ingot.cli.bench.small import ITERATION, STEP

NAMES = {STEP: "step() alone", ITERATION: "a whole iteration"}


def small_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of small models."""
    return [row for row in rows if row.part in NAMES]


def small_tables(rows: Sequence[Row]) -> list[Table]:
    """For steps and iterations and every number of threads: all times; then the ratios of all of them."""
    found = small_rows(rows)
    kinds = sorted(
        {(row.part, row.threads) for row in found}, key=lambda kind: (kind[0] != STEP, kind)
    )
    groups = [[row for row in found if (row.part, row.threads) == kind] for kind in kinds]
    return [*map(times_table, groups), *map(ratio_table, groups)]


def heading(row: Row) -> str:
    """What was timed, and on how many threads."""
    return f"{NAMES[row.part]}, {row.threads} thread{'s' if row.threads > 1 else ''}"


def both(row: Row | None) -> str:
    """Best and median in microseconds."""
    return "-" if row is None else f"{micro(row.best_ms)} / {micro(row.median_ms)}"


def times_table(rows: Sequence[Row]) -> Table:
    """One line per model and optimizer: ours, the floor and the fastest other."""
    title = f"Small models, {heading(rows[0])}: µs, best / median"
    table = Table(title=title, title_justify="left")
    for name in ("", "", "ours", "floor", "floor / ours", "fastest other", "", "its time / ours"):
        left = name in ("", "fastest other")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for key in dict.fromkeys(row.shapes for row in rows):
        table.add_section()
        for own in [row for row in rows if row.shapes == key and row.ours]:
            field = [r for r in rows if (r.shapes, r.optimizer) == (key, own.optimizer)]
            base = next((row for row in field if row.contestant == SMALL_FLOOR), None)
            peer = next((row for row in field if row.contestant == own.peer), None)
            share = "-" if own.floor_share is None else f"{own.floor_share:.2f}"
            names = LISTS[key].title, TITLES[own.optimizer]
            table.add_row(*names, both(own), both(base), share, own.peer, both(peer), ratio(own))
    return table


def ratio_table(rows: Sequence[Row]) -> Table:
    """Optimizers down, models across: the time of the fastest other over ours."""
    own = {(row.optimizer, row.shapes): row for row in rows if row.ours}
    keys = list(dict.fromkeys(row.shapes for row in rows))
    title = f"Small models, {heading(rows[0])}: fastest other's time / ours, best / median"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for key in keys:
        table.add_column(LISTS[key].title.split(",")[0], justify="right", no_wrap=True)
    for name in TITLES:
        if any(optimizer == name for optimizer, _ in own):
            table.add_row(TITLES[name], *(ratio(own.get((name, key))) for key in keys))
    return table


def slower(rows: Sequence[Row]) -> list[str]:
    """A line that names every race of steps that somebody else has won; whole iterations differ by chance as well."""
    lost = [
        f"{TITLES[row.optimizer]} on {LISTS[row.shapes].title}, {heading(row)}: {ratio(row)} ({row.peer})"
        for row in small_rows(rows)
        if row.part == STEP and row.peer_ratio is not None and row.peer_ratio < 1
    ]
    return [f"Slower than somebody else: {'; '.join(lost)}"] if lost else []


def draw_small(rows: Sequence[Row], circumstances: Mapping[str, str], path: Path) -> Path | None:
    """Microseconds of a step on one thread, a panel per model: a line per optimizer, a dot per contestant."""
    found = [row for row in rows if row.part == STEP and row.threads == 1]
    if not found:
        return None
    keys = list(dict.fromkeys(row.shapes for row in found))
    optimizers = [name for name in TITLES if any(row.optimizer == name for row in found)]
    columns = min(4, len(keys))
    lines = -(-len(keys) // columns)
    figure, panels = plt.subplots(
        lines,
        columns,
        figsize=(2.2 + 3.2 * columns, 1.7 + lines * (0.9 + 0.36 * len(optimizers))),
        squeeze=False,
        layout="constrained",
    )
    for place, panel in enumerate(panels.flat):
        if place >= len(keys):
            panel.set_axis_off()
            continue
        key = keys[place]
        draw_model(panel, [row for row in found if row.shapes == key], optimizers)
        panel.set_title(LISTS[key].title, fontsize=11, fontweight="bold")
        panel.set_yticks(range(len(optimizers)), [TITLES[name] for name in optimizers], fontsize=9)
        if place % columns:
            panel.set_yticklabels([])
    explain(figure)
    # The panels are about one thread, whatever the rest of the run had.
    headline(figure, "step() of small models, float32", {**circumstances, "threads": "1"})
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_model(panel: Any, rows: Sequence[Row], optimizers: Sequence[str]) -> None:
    """The dots of one model, with the name of the fastest other; the floor is a short upright line."""
    others = [row for row in rows if not row.ours and row.contestant != SMALL_FLOOR]
    for row in rows:
        place, value = optimizers.index(row.optimizer), 1e3 * row.median_ms
        if row.contestant == SMALL_FLOOR:
            panel.plot(value, place, "|", color=LINE, markersize=13, markeredgewidth=1.8)
        elif not row.ours:
            panel.plot(value, place, "o", color=THEIRS, markersize=5, alpha=0.65)
        else:
            panel.plot(value, place, "o", color=OURS, markersize=8, zorder=3)
            write(panel, row, place, micro(row.median_ms))
    panel.set_xscale("log")
    low, high = panel.get_xlim()
    for optimizer in {row.optimizer for row in others}:
        rival = min(
            (row for row in others if row.optimizer == optimizer), key=lambda row: row.median_ms
        )
        # Towards the side where there is more room.
        side = "right" if 1e3 * rival.median_ms > math.sqrt(low * high) else "left"
        write(panel, rival, optimizers.index(optimizer), rival.contestant, side)
    parts = (1.0, 2.0, 5.0) if high < 30 * low else (1.0,)
    panel.xaxis.set_major_locator(LogLocator(subs=parts))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(len(optimizers) - 0.4, -0.7)
    panel.grid(axis="x", color="#e2e8f0", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def write(panel: Any, row: Row, place: int, text: str, side: str = "center") -> None:
    """Words above our dot, or below another one."""
    panel.annotate(
        text,
        (1e3 * row.median_ms, place),
        xytext=(0, 6 if row.ours else -5),
        textcoords="offset points",
        ha=side,
        va="bottom" if row.ours else "top",
        fontsize=8 if row.ours else 6.5,
        color=OURS if row.ours else THEIRS,
        fontweight="bold" if row.ours else "normal",
    )


def explain(figure: Any) -> None:
    """The legend, once for all panels."""
    dots = {"ingot": ("o", OURS, 8), "others": ("o", THEIRS, 5)}
    marks = {**dots, "floor: the math with everything prepared once": ("|", LINE, 13)}
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=color, markersize=size, label=label)
        for label, (marker, color, size) in marks.items()
    ]
    figure.legend(
        handles=handles,
        title="µs per step, medians, log scale; the number is ours, the name that of the fastest other\n"
        "The floor takes its turns as all do and has states of its own: noise can put it to the right of ours",
        loc="outside lower center",
        fontsize=9,
        frameon=False,
        ncols=len(handles),
    )
