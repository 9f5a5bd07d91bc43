"""The picture of `ingot memory`: what is kept on the device and on the host, one pair of bars per way to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # a file is written; no display is needed
from matplotlib import pyplot
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from ingot.cli.memory import Row

COLOURS = {
    "parameters": "#08519c",
    "gradients": "#d94801",
    "states": "#238b45",
    "master weights": "#6a51a3",
    "host copies": "#969696",
}


def draw(accounts: Mapping[str, Sequence[Row]], chosen: str, title: str, path: Path) -> None:
    """Writes the picture to ``path``; the name of the chosen account is set in bold."""
    figure, axes = pyplot.subplots(
        1,
        2,
        figsize=(11, 0.6 * len(accounts) + 1.8),
        sharey=True,
        sharex=True,
        layout="constrained",
    )
    for axis, place in zip(axes, ("device", "host"), strict=True):
        for line, rows in enumerate(accounts.values()):
            left = 0.0
            for row in rows:
                gigabytes = getattr(row, place) / 1e9
                axis.barh(line, gigabytes, left=left, color=COLOURS[row.name], height=0.65)
                left += gigabytes
            axis.annotate(
                f"{left:.4g}", (left, line), (4, 0), textcoords="offset points", va="center"
            )
        axis.set_title(f"on the {place}")
        axis.set_xlabel("GB")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(accounts)), list(accounts))
    axes[0].invert_yaxis()
    axes[0].margins(x=0.12)
    for label in axes[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == chosen else "normal")
    names = dict.fromkeys(row.name for rows in accounts.values() for row in rows if any(row[1:]))
    patches = [Patch(color=COLOURS[name]) for name in names]
    figure.legend(patches, list(names), loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
