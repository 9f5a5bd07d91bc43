"""The picture of `ingot watch`: heat maps of parameters by steps, the total norm, and names beside what stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file is written; no display is needed
from matplotlib import colormaps, pyplot
from matplotlib.colors import LogNorm

from ingot.metrics import Metrics
from ingot.metrics.verdict import Verdict

COLORS = {"dying": "#1d4ed8", "exploding": "#b91c1c"}
MISSING = "#e5e7eb"  # no gradient in that step
BROKEN = "#000000"  # not finite
# Inches: a row of a small map, a line of text, the tallest map.
ROW, LABEL, TALLEST = 0.2, 0.18, 18.0
MIXED = "#0f172a"  # of neighbours of which some die and some explode
# Blue is too little, red too much, white about the usual: what dies and what explodes look different at a glance.
# The trust ratio is large for a gradient that vanished and for a weight that exploded alike: no red and blue for it.
TITLES = {
    "update_ratio": ("Update ratio: |update| / |weight|", "RdBu_r", "white: the median"),
    "grad_norm": ("Gradient norm", "RdBu_r", "white: the median"),
    "trust_ratio": (
        "LAMB's trust ratio: large where the gradient vanished, or the weight grew",
        "Purples",
        "dark: large",
    ),
}


def draw(run: Sequence[Metrics], verdicts: Mapping[str, Verdict], path: Path) -> None:
    """Writes the picture to ``path``."""
    names = by_module(dict.fromkeys(name for metrics in run for name in metrics))
    trust = any("trust_ratio" in values for values in run[-1].values())
    maps = ["update_ratio", "grad_norm", *(["trust_ratio"] if trust else [])]
    height = min(max(ROW * len(names), 2.6), TALLEST)
    figure, panels = pyplot.subplots(
        1 + len(maps),
        1,
        figsize=(9.6, 2.2 + len(maps) * (height + 0.5)),
        height_ratios=[1.5] + [height] * len(maps),
        sharex=True,
        layout="constrained",
    )
    draw_total(panels[0], run)
    for panel, quantity in zip(panels[1:], maps, strict=True):
        draw_map(panel, run, names, quantity)
        name_rows(panel, names, verdicts, math.ceil(LABEL / height * len(names)))
    panels[-1].set_xlabel("step")
    figure.suptitle(headline(verdicts), fontsize=14, fontweight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def headline(verdicts: Mapping[str, Verdict]) -> str:
    """What the picture says, in one line."""
    kinds = [verdict.kind for verdict in verdicts.values()]
    counts = [f"{kinds.count(kind)} {kind}" for kind in COLORS if kind in kinds]
    return f"Parameters that stand out: {', '.join(counts)}" if counts else "Nothing stands out"


def by_module(names: Mapping[str, None]) -> list[str]:
    """Parameters of one module next to each other, modules in the order in which they first appear."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    place = {module: number for number, module in enumerate(modules)}
    return sorted(names, key=lambda name: place[name.rpartition(".")[0]])


def draw_total(panel: Any, run: Sequence[Metrics]) -> None:
    """The norm of all gradients, and how often it was clipped."""
    steps = [metrics.step for metrics in run]
    panel.plot(steps, [metrics.total_norm for metrics in run], color="#0f172a", linewidth=1.3)
    clipped = [m for m in run if m.clip_coefficient is not None and m.clip_coefficient < 1]
    if clipped:
        label = f"clipped ({len(clipped)} of {len(run)} tracked steps)"
        points = [m.step for m in clipped], [m.total_norm for m in clipped]
        panel.plot(*points, ".", color="#c2410c", markersize=4, label=label)
        panel.legend(fontsize=10, frameon=False, loc="upper left")
    if any(0 < metrics.total_norm < math.inf for metrics in run):
        panel.set_yscale("log")
    panel.set_title("Norm of all gradients, before clipping", fontsize=12, loc="left")
    panel.grid(color="#e2e8f0", linewidth=0.7)
    panel.spines[["top", "right"]].set_visible(False)


def draw_map(panel: Any, run: Sequence[Metrics], names: Sequence[str], quantity: str) -> None:
    """One cell per parameter and tracked step, coloured by how far it is from the median of all."""
    rows = [[metrics.get(name, {}).get(quantity) for metrics in run] for name in names]
    usable = sorted(v for row in rows for v in row if v is not None and 0 < v < math.inf)
    middle = usable[len(usable) // 2] if usable else 1.0
    norm = LogNorm(middle / 1e3, middle * 1e3)
    title, colored, meaning = TITLES[quantity]
    colors = colormaps[colored]
    image = [[cell(value, norm, colors) for value in row] for row in rows]
    steps = [metrics.step for metrics in run]
    half = (steps[-1] - steps[0]) / max(len(steps) - 1, 1) / 2 or 0.5
    extent = (steps[0] - half, steps[-1] + half, len(names) - 0.5, -0.5)
    panel.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
    scale = matplotlib.cm.ScalarMappable(norm, colors)
    bar = panel.figure.colorbar(scale, ax=panel, extend="both", pad=0.02, fraction=0.03, shrink=0.8)
    bar.ax.tick_params(labelsize=10)
    bar.set_label(meaning, fontsize=10)
    panel.set_title(title, fontsize=12, loc="left")


def cell(value: float | None, norm: LogNorm, colors: Any) -> tuple[float, ...]:
    """The colour of one cell."""
    if value is None:
        return matplotlib.colors.to_rgba(MISSING)
    if not math.isfinite(value):
        return matplotlib.colors.to_rgba(BROKEN)
    color: tuple[float, ...] = colors(0.0 if value <= 0 else float(norm(value, clip=True)))
    return color


def name_rows(
    panel: Any, names: Sequence[str], verdicts: Mapping[str, Verdict], apart: int
) -> None:
    """Names on the left, and on the right the verdicts, in their colours, ``apart`` rows from each other."""
    clusters = together([row for row, name in enumerate(names) if name in verdicts], apart)
    labels = {rows[0]: names[rows[0]] + more(len(rows) - 1) for rows in clusters}
    # Where there is room between those, others are named as well.
    for row in range(0, len(names), apart):
        if all(abs(row - other) >= apart for other in labels):
            labels[row] = names[row]
    panel.set_yticks(list(labels), list(labels.values()), fontsize=10)
    ticks = dict(zip(labels, panel.get_yticklabels(), strict=True))
    for rows in clusters:
        kinds = [verdicts[names[row]].kind for row in rows]
        color = COLORS[kinds[0]] if len(set(kinds)) == 1 else MIXED
        ticks[rows[0]].set(color=color, fontweight="bold")
        counts = [f"{kinds.count(kind)} {kind}" for kind in COLORS if kind in kinds]
        panel.annotate(
            f"\N{BLACK LEFT-POINTING TRIANGLE} {kinds[0] if len(rows) == 1 else ', '.join(counts)}",
            (panel.get_xlim()[1], rows[0]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=11,
            fontweight="bold",
            color=color,
            annotation_clip=False,
        )


def together(rows: Sequence[int], apart: int) -> list[list[int]]:
    """Rows in clusters whose first ones are at least ``apart`` from each other: labels must not overlap."""
    clusters: list[list[int]] = []
    for row in rows:
        if clusters and row < clusters[-1][0] + apart:
            clusters[-1].append(row)
        else:
            clusters.append([row])
    return clusters


def more(count: int) -> str:
    """What a label says of the neighbours it stands for."""
    return f" + {count}" if count else ""
