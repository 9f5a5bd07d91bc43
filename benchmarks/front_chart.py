"""Draws the chart of the front page from committed results: how many times as fast as the best other implementation.

    python benchmarks/front_chart.py [--results benchmarks/results] [--output docs/images/front.png]

Medians of bench.csv, which `ingot bench` writes; needs matplotlib. A further line of the chart is a row of LINES. What
was not measured is left out, and said so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from ingot.cli.bench.records import FLOOR, SMALL_FLOOR, Row, read_csv

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "docs" / "images" / "front.png"
# Title, and the part, the optimizer and the list of shapes in the results; of small models those of one thread, of
# other precisions those of 8-bit states.
LINES = [
    ("AdamW, MLP of 6 tensors: step", "step", "adamw", "mlp"),
    ("AdamW, MLP of 6 tensors: whole iteration", "iteration", "adamw", "mlp"),
    ("AdamW, small transformer: step", "step", "adamw", "transformer"),
    ("AdamW, small transformer: whole iteration", "iteration", "adamw", "transformer"),
    ("AdamW, BERT-base: step", "race", "adamw", "bert-base"),
    ("LAMB, BERT-base: step", "race", "lamb", "bert-base"),
    ("AdamP, BERT-base: step", "race", "adamp", "bert-base"),
    ("AdamW with 8-bit states, BERT-base: step", "8bit", "adamw", "bert-base"),
]
WHICH = {"step": ("threads", 1), "iteration": ("threads", 1), "8bit": ("dtype", "8bit")}


def race_of(rows: list[Row], part: str, optimizer: str, shapes: str) -> tuple[Row, Row] | None:
    """Ours and the fastest other one by median; None if not both were measured."""
    found = [r for r in rows if (r.part, r.optimizer, r.shapes) == (part, optimizer, shapes)]
    if part in WHICH:
        name, value = WHICH[part]
        found = [row for row in found if getattr(row, name) == value]
    ours = next((row for row in found if row.ours), None)
    others = [row for row in found if not row.ours and row.contestant not in (FLOOR, SMALL_FLOOR)]
    if ours is None or not others:
        return None
    return ours, min(others, key=lambda row: row.median_ms)


def time_of(row: Row) -> str:
    """The median in a unit that suits it."""
    value, unit = (row.median_ms, "ms") if row.median_ms >= 1 else (1e3 * row.median_ms, "µs")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def factor(ratio: float) -> str:
    """How many times as fast, with the digits that count."""
    return f"{ratio:.2f} x" if ratio < 2 else f"{ratio:.1f} x" if ratio < 10 else f"{ratio:.0f} x"


def drawn(bars: Sequence[tuple[str, Row, Row]], circumstances: Mapping[str, str]) -> Figure:
    """A bar per line with its words above it: narrow, so that a telephone shows them large enough to read."""
    figure, panel = pyplot.subplots(figsize=(6.6, 1.1 + 0.53 * len(bars)), layout="constrained")
    ratios = [peer.median_ms / ours.median_ms for _, ours, peer in bars]
    for place, (ratio, (title, ours, peer)) in enumerate(zip(ratios, bars, strict=True)):
        panel.barh(place, ratio - 1.0, left=1.0, color="#c2410c", height=0.42)
        right = max(ratio, 1.0)  # of the line at 1, too
        words = f"   {time_of(ours)} against {time_of(peer)}"
        beside = panel.annotate(
            factor(ratio),
            (right, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=12,
            fontweight="bold",
        )
        panel.annotate(words, (1, 0.5), xycoords=beside, va="center", fontsize=11)
        panel.annotate(
            title, (1.0, place - 0.3), xytext=(3, 0), textcoords="offset points", fontsize=11.5
        )
        panel.annotate(
            peer.contestant,
            (1, place - 0.3),
            xycoords=panel.get_yaxis_transform(),
            ha="right",
            fontsize=10,
            color="#475569",
        )
    panel.axvline(1.0, color="#0f172a", linewidth=1.2)
    panel.set_yticks([])
    panel.set_ylim(len(bars) - 0.6, -0.75)
    panel.set_xscale("log")
    panel.set_xlim(min(1.0, 0.9 * min(ratios)), max(2.0, *ratios) ** 1.8)  # room for the words
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick <= 1.5 * max(ratios)]
    panel.set_xticks(ticks, [f"{tick}" for tick in ticks], fontsize=11)
    panel.minorticks_off()
    figure.suptitle("On a CPU: times as fast as the best other one", fontsize=13.5)
    threads = f"{circumstances['threads']} threads"
    if any(bar[1].part in ("step", "iteration") for bar in bars):
        threads += " (small models: 1)"
    panel.set_xlabel(
        f"log scale; medians; on the right the best other one\n{circumstances['cpu']}, {threads}, "
        f"torch {circumstances['torch']}, {circumstances['date'][:10]}",
        fontsize=10,
    )
    panel.spines[["top", "right", "left"]].set_visible(False)
    return figure


def main() -> None:
    """Reads the results and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    chosen = parser.parse_args()
    rows, circumstances = read_csv(chosen.results / "bench.csv")
    bars: list[tuple[str, Row, Row]] = []
    for title, *key in LINES:
        pair = race_of(rows, *key)
        if pair is None:
            print(f"not in {chosen.results / 'bench.csv'}, left out: {title}")
        else:
            bars.append((title, *pair))
    if not bars:
        raise SystemExit("nothing to draw")
    figure = drawn(bars, circumstances)
    figure.savefig(chosen.output, dpi=130)
    print(chosen.output)


if __name__ == "__main__":
    main()
