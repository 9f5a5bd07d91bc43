"""The picture of `ingot demo`: training loss and test accuracy of every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # a file is written; no display is needed
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from ingot.cli.demo_train import Run

# One row of panels per family: colour, dashes and width, in the order of the legend. A torch.optim run is a
# broad pale band under the fused run it pairs with: where the two agree, a thin line runs in the middle of the band.
FAMILIES: tuple[dict[str, tuple[str, Any, float]], ...] = (
    {
        "NpuFusedAdamW": ("#08519c", "-", 1.6),
        "torch.optim.AdamW": ("#9ecae1", "-", 6.0),
        "NpuFusedAdam": ("#525252", (0, (3, 1.5)), 1.6),
        "NpuFusedAdamP": ("#cb181d", ":", 2.2),
        "NpuFusedBertAdam": ("#6a51a3", (0, (6, 1.5, 1, 1.5, 1, 1.5)), 1.6),
        "NpuFusedLamb": ("#238b45", "-.", 1.6),
    },
    {
        "NpuFusedSGD": ("#d94801", "--", 1.6),
        "torch.optim.SGD": ("#fdd0a2", "-", 6.0),
        "NpuFusedAdadelta": ("#08519c", "-", 1.6),
        "NpuFusedRMSprop": ("#238b45", "-.", 1.6),
        "NpuFusedRMSpropTF": ("#6a51a3", ":", 2.2),
    },
)


def smooth(values: list[float], window: int) -> list[float]:
    """The mean over the last ``window`` values, fewer at the start."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def draw(runs: list[Run], path: Path) -> None:
    """Writes the picture to ``path``."""
    figure, rows = pyplot.subplots(
        len(FAMILIES), 2, figsize=(12, 8.5), sharex="col", sharey="col", layout="constrained"
    )
    by_name = {run.name: run for run in runs}
    for panels, family in zip(rows, FAMILIES, strict=True):
        for name, style in family.items():
            draw_run(panels, by_name[name], style)
        panels[0].legend(fontsize=8, loc="upper right", framealpha=0.9)
    # Enough room for where they end; the first epochs may start below the picture.
    rows[0][1].set_ylim(100 * min(run.accuracies[-1] for run in runs) - 5, 100)
    rows[0][0].set(title="Training loss (mean of one epoch)", yscale="log")
    rows[0][1].set_title("Test accuracy, %")
    rows[-1][0].set_xlabel("step")
    rows[-1][1].set_xlabel("epoch")
    rows[-1][1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in rows.flat:
        axes.grid(alpha=0.3)
    figure.suptitle("Handwritten digits: one small network, same start, same batches")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def draw_run(panels: Any, run: Run, style: tuple[str, Any, float]) -> None:
    """The two curves of one run."""
    color, dashes, width = style
    look: dict[str, Any] = dict(color=color, linestyle=dashes, linewidth=width, zorder=9 - width)
    epochs = len(run.accuracies)
    losses = smooth(run.losses, len(run.losses) // epochs)
    label = f"{run.name} ({run.options})"
    panels[0].plot(range(1, len(losses) + 1), losses, label=label, **look)
    panels[1].plot(range(1, epochs + 1), [100 * share for share in run.accuracies], **look)
