"""The pictures: what a parameter costs with everybody, and how that grows with the model."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.records import FLOOR, Row
from ingot.cli.bench.shapes import SHAPES
from ingot.cli.bench.show import number

OURS, THEIRS, LINE = "#c2410c", "#64748b", "#0f172a"
PEERS = ("#2563eb", "#15803d", "#9333ea", "#0891b2", "#475569", "#ca8a04")  # lines of others


def draw_race(rows: Sequence[Row], circumstances: Mapping[str, str], path: Path) -> Path | None:
    """One panel per optimizer and shape list, all on one scale: a dot per contestant, the memory floor a line."""
    race = [row for row in rows if row.part == "race"]
    if not race:
        return None
    optimizers = [name for name in TITLES if any(row.optimizer == name for row in race)]
    keys = list(dict.fromkeys(row.shapes for row in race))
    order = {name: ranking(race, name) for name in optimizers}
    counts = [len(order[name]) for name in optimizers]
    figure, panels = plt.subplots(
        len(optimizers),
        len(keys),
        figsize=(3.0 + 3.1 * len(keys), 1.6 + 0.34 * sum(counts) + 0.25 * len(counts)),
        height_ratios=[count + 0.6 for count in counts],
        sharex="all",
        squeeze=False,
        layout="constrained",
    )
    for line, optimizer in enumerate(optimizers):
        for column, key in enumerate(keys):
            panel = panels[line][column]
            found = [r for r in race if (r.optimizer, r.shapes) == (optimizer, key)]
            draw_panel(panel, found, order[optimizer])
            if column:
                panel.set_yticklabels([])
            else:
                # In two lines: a row of two contestants is shorter than "RMSprop momentum".
                title = TITLES[optimizer].replace(" ", "\n")
                panel.set_ylabel(title, fontsize=10, fontweight="bold", labelpad=10)
            if line == 0:
                size = f"{found[0].tensors} tensors, {found[0].parameters / 1e6:.1f} M parameters"
                panel.set_title(f"{SHAPES[key].title}\n", fontsize=11, fontweight="bold")
                panel.text(0.5, 1.03, size, transform=panel.transAxes, ha="center", fontsize=8)
    figure.align_ylabels(panels[:, 0])
    widen(panels)
    floor = "; black line: the same memory traffic without the math" if has_floor(race) else ""
    figure.supxlabel(f"nanoseconds per parameter, median, log scale{floor}", fontsize=10)
    headline(figure, "One optimizer step, float32", circumstances)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def ranking(race: Sequence[Row], optimizer: str) -> list[str]:
    """Contestants from slow to fast by their place on the first shape list, ours on top."""
    rows = [row for row in race if row.optimizer == optimizer and row.contestant != FLOOR]
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.contestant, row)
    return sorted(first, key=lambda name: (first[name].ours, -first[name].median_ms))


def draw_panel(panel: Any, rows: Sequence[Row], order: Sequence[str]) -> None:
    """The dots of one optimizer on one shape list."""
    floor = next((cost(row) for row in rows if row.contestant == FLOOR), None)
    if floor is not None:
        panel.axvline(floor, color=LINE, linewidth=1.2)
    for row in rows:
        if row.contestant == FLOOR:
            continue
        place, color = order.index(row.contestant), OURS if row.ours else THEIRS
        value = cost(row)
        panel.plot([floor or value, value], [place, place], color=color, linewidth=2.2)
        panel.plot(value, place, "o", color=color, markersize=7)
        panel.annotate(
            number(value),
            (value, place),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=color,
            fontweight="bold" if row.ours else "normal",
        )
    panel.set_xscale("log")
    panel.set_ylim(-0.8, len(order) - 0.2)
    panel.set_yticks(range(len(order)), order, fontsize=9)
    for label, name in zip(panel.get_yticklabels(), order, strict=True):
        if name.startswith("ingot"):
            label.set(color=OURS, fontweight="bold")
    panel.grid(axis="x", color="#e2e8f0", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)


def cost(row: Row) -> float:
    """Nanoseconds per parameter, the median of the run."""
    return row.median_ms * 1e6 / row.parameters


def cost_of_tensor(row: Row) -> float:
    """Microseconds per tensor, the median of the run."""
    return row.median_ms * 1e3 / row.tensors


def widen(panels: Any) -> None:
    """Readable ticks, and room for the numbers to the right of the dots."""
    low, high = panels[0][0].get_xlim()
    panels[0][0].set_xlim(low, high * (high / low) ** 0.18)
    for axis in (panel.xaxis for panel in panels[-1]):
        axis.set_major_locator(LogLocator(subs=(1.0,), numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def has_floor(rows: Sequence[Row]) -> bool:
    """Whether the floor was measured."""
    return any(row.contestant == FLOOR for row in rows)


def headline(figure: Any, title: str, circumstances: Mapping[str, str]) -> None:
    """What a picture shows, and below it the machine, in as many lines as the width needs."""
    letters = int(11.5 * figure.get_figwidth())
    figure.suptitle(f"{title}\n{textwrap.fill(machine_line(circumstances), letters)}", fontsize=11)


def machine_line(circumstances: Mapping[str, str]) -> str:
    """The machine and the versions in one line."""
    parts = (
        circumstances["cpu"],
        f"{circumstances['threads']} thread{'s' if circumstances['threads'] != '1' else ''}",
        f"torch {circumstances['torch']}",
        f"ingot {circumstances['commit'] or circumstances['ingot']} ({circumstances['backend']})",
        circumstances["date"][:10],
    )
    return ", ".join(parts)


def draw_scaling(rows: Sequence[Row], circumstances: Mapping[str, str], path: Path) -> Path | None:
    """Time per parameter and per tensor against size, a column per optimizer: a flat line grows in proportion."""
    labels = {
        "parameters": ("parameters, in tensors of (1000, 1000)", "ns per parameter"),
        "tensors": ("tensors of (16, 64)", "µs per tensor"),
    }
    grown = [row for row in rows if row.part in labels]
    if not grown:
        return None
    optimizers = [name for name in TITLES if any(row.optimizer == name for row in grown)]
    figure, panels = plt.subplots(
        2,
        len(optimizers),
        figsize=(max(9.0, 1.0 + 3.4 * len(optimizers)), 7.6),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, (part, (label, unit)) in zip(panels, labels.items(), strict=True):
        for panel, optimizer in zip(line, optimizers, strict=True):
            found = [r for r in grown if (r.part, r.optimizer) == (part, optimizer)]
            draw_growth(panel, found, part)
            panel.set_xlabel(label, fontsize=9)
        line[0].set_ylabel(f"{unit}, median, log scale", fontsize=9)
    for panel, optimizer in zip(panels[0], optimizers, strict=True):
        panel.set_title(TITLES[optimizer], fontsize=11, fontweight="bold")
        panel.legend(fontsize=8, frameon=False)  # the panel below has the same lines
    headline(figure, "One step as the model grows, float32", circumstances)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_growth(panel: Any, rows: Sequence[Row], part: str) -> None:
    """One line per contestant, ours the thickest."""
    names = list(dict.fromkeys(row.contestant for row in rows))
    measure = cost if part == "parameters" else cost_of_tensor
    others = cycle(PEERS)
    for name in names:
        line = [row for row in rows if row.contestant == name]
        ours = line[0].ours
        panel.plot(
            [getattr(row, part) for row in line],
            [measure(row) for row in line],
            "o-",
            color=OURS if ours else next(others),
            markersize=5 if ours else 3,
            linewidth=2.6 if ours else 1.3,
            zorder=3 if ours else 2,
            label=name,
        )
    panel.set(xscale="log", yscale="log")
    panel.xaxis.set_major_formatter(FuncFormatter(short))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(color="#e2e8f0", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)


def short(value: float, _: object = None) -> str:
    """A power of ten as people say it."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,g}"
