"""The picture of `ingot demo`: every fused optimizer on top of what it must agree with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # a file is written; no display is needed
from matplotlib import pyplot

if TYPE_CHECKING:
    from ingot.cli.demo_train import Run

COLUMNS = 3
TITLE = "Handwritten digits: one small network, same start, same batches"
# One set of axes would invite a ranking that one learning rate per optimizer cannot give.
NOTE = (
    "Training loss over the steps (mean of one epoch): agreement of two implementations, not a race.\n"
    "Every optimizer has its own learning rate and its own scale; the panels do not rank them.\n"
    "Where training is unstable a difference in the last digit may grow."
)


def smooth(values: list[float], window: int) -> list[float]:
    """The mean over the last ``window`` values, fewer at the start."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def draw(pairs: list[tuple[Run, Run]], path: Path) -> None:
    """Writes the picture to ``path``."""
    rows = -(-len(pairs) // COLUMNS)
    figure, panels = pyplot.subplots(
        rows, COLUMNS, figsize=(11, 2.9 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(pairs) :]:
        panel.set_axis_off()
    for panel, pair in zip(panels.flat, pairs, strict=False):
        draw_pair(panel, *pair)
    for panel in panels[-1]:
        panel.set_xlabel("step")
    figure.suptitle(f"{TITLE}\n{NOTE}", fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_pair(panel: Any, ours: Run, other: Run) -> None:
    """A thin line in the middle of a broad pale band, where the two agree."""
    window = len(ours.losses) // len(ours.accuracies)
    mine, theirs = (smooth(run.losses, window) for run in (ours, other))
    steps = range(1, len(mine) + 1)
    label = f"backend {other.backend}" if other.name == ours.name else other.name
    panel.plot(steps, theirs, color="#9ecae1", linewidth=6.0, label=label)
    panel.plot(steps, mine, color="#08306b", linewidth=1.4, label=f"backend {ours.backend}")
    apart = max(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
    panel.set_title(f"{ours.name}\n{ours.options}", fontsize=9)
    panel.set_yscale("log")
    title = f"largest difference: {apart:.1g} of the loss"
    panel.legend(title=title, title_fontsize=8, fontsize=8, loc="best")
    panel.grid(alpha=0.3)
