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

# Colour, dashes and width, in the order of the legend. A torch.optim run is a broad pale band under
# the fused run it pairs with: where the two agree, a thin line runs in the middle of the band.
STYLES: dict[str, tuple[str, Any, float]] = {
    "NpuFusedLamb": ("#238b45", "-.", 1.6),
    "NpuFusedAdamP": ("#cb181d", ":", 2.2),
    "NpuFusedBertAdam": ("#6a51a3", (0, (6, 1.5, 1, 1.5, 1, 1.5)), 1.6),
    "NpuFusedAdamW": ("#08519c", "-", 1.6),
    "torch.optim.AdamW": ("#9ecae1", "-", 6.0),
    "NpuFusedSGD": ("#d94801", "--", 1.6),
    "torch.optim.SGD": ("#fdd0a2", "-", 6.0),
}


def smooth(values: list[float], window: int) -> list[float]:
    """The mean over the last ``window`` values, fewer at the start."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]


def draw(runs: list[Run], path: Path) -> None:
    """Writes the picture to ``path``."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    epochs = len(runs[0].accuracies)
    per_epoch = len(runs[0].losses) // epochs
    for run in sorted(runs, key=lambda run: list(STYLES).index(run.name)):
        color, dashes, width = STYLES[run.name]
        look: dict[str, Any] = dict(
            color=color, linestyle=dashes, linewidth=width, zorder=9 - width
        )
        left.plot(
            range(1, len(run.losses) + 1),
            smooth(run.losses, per_epoch),
            label=f"{run.name} ({run.options})",
            **look,
        )
        right.plot(range(1, epochs + 1), [100 * share for share in run.accuracies], **look)
    left.set(xlabel="step", ylabel="loss", yscale="log", title="Training loss (mean of one epoch)")
    right.set(xlabel="epoch", ylabel="correct, %", title="Test accuracy")
    # Enough room for where they end; the first epochs may start below the picture.
    right.set_ylim(100 * min(run.accuracies[-1] for run in runs) - 5, 100)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Handwritten digits: one small network, same start, same batches")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
