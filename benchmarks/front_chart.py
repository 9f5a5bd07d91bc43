"""Draws the chart of the front page from committed results: how many times as fast as the best other implementation.

    python benchmarks/front_chart.py

Medians of benchmarks/results/bench.csv, the race of `make bench`; needs matplotlib. A further line of the chart is a
row of LINES.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "docs" / "images" / "front.png"
# Title, and the optimizer and the list of shapes in the results.
LINES = [
    ("AdamP, 1000 small tensors", "adamp", "small"),
    ("LAMB, 1000 small tensors", "lamb", "small"),
    ("AdamW, 1000 small tensors", "adamw", "small"),
    ("AdamP, BERT-base", "adamp", "bert-base"),
    ("LAMB, BERT-base", "lamb", "bert-base"),
    ("AdamW, BERT-base", "adamw", "bert-base"),
]


def main() -> None:
    """Reads the results and writes the picture."""
    with (HERE / "results" / "bench.csv").open(newline="") as file:
        race = [row for row in csv.DictReader(file) if row["part"] == "race"]
    figure, panel = pyplot.subplots(figsize=(7.0, 3.1), layout="constrained")
    for place, (_, optimizer, shapes) in enumerate(reversed(LINES)):
        rows = [row for row in race if (row["optimizer"], row["shapes"]) == (optimizer, shapes)]
        ours = next(row for row in rows if row["ours"] == "True")
        peer = next(row for row in rows if row["contestant"] == ours["peer"])
        ratio = float(peer["median_ms"]) / float(ours["median_ms"])
        panel.barh(place, ratio, color="#c2410c", height=0.62)
        times = f"{float(ours['median_ms']):.3g} ms against {float(peer['median_ms']):.3g} ms"
        text = f"  {ratio:.1f} x   ({times}, {ours['peer']})"
        panel.text(ratio, place, text, va="center", fontsize=8.5)
    panel.axvline(1.0, color="#0f172a", linewidth=1.2)
    panel.set_yticks(range(len(LINES)), [title for title, *_ in reversed(LINES)], fontsize=9)
    panel.set_xlim(0, 66)
    panel.set_title("One step on a CPU: how many times as fast as the best other one", fontsize=11)
    circumstances = f"median of the run; {race[0]['cpu']}, {race[0]['threads']} threads"
    panel.set_xlabel(
        f"{circumstances}, torch {race[0]['torch']}, {race[0]['date'][:10]}", fontsize=8
    )
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    figure.savefig(OUTPUT, dpi=130)
    print(OUTPUT)


if __name__ == "__main__":
    main()
