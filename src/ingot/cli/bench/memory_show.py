"""What is shown of memory: a table, and a picture of one iteration with normal steps and with released gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.table import Table

from ingot.cli.bench.memory import PART, PHASES, RELEASED, Trace
from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.picture import LINE, OURS, THEIRS, headline
from ingot.cli.bench.records import Row
from ingot.cli.bench.show import number, times

SHADES = dict(zip(PHASES, ("#ffffff", "#f8fafc", "#eef2f7", "#dbe3ee"), strict=True))


def memory_tables(rows: Sequence[Row]) -> list[Table]:
    """Time and peak of one iteration both ways; none if the part was not run."""
    found = [row for row in rows if row.part == PART]
    if not found:
        return []
    title = f"One iteration, {found[0].parameters / 1e6:.1f} M parameters: ms, best / median"
    table = Table(title=title, title_justify="left")
    headings = ("", "", "time", "normal / released", "peak, MB", "of the gradients saved")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for row in found:
        saved = "" if row.grads_saved is None else f"{row.grads_saved:.0%}"
        ratio = "" if row.peer_ratio is None else f"{row.peer_ratio:.2f}"
        peak = "" if row.peak_mb is None else number(row.peak_mb)
        name = TITLES[row.optimizer]
        table.add_row(name, row.contestant, times(row), ratio, peak, saved)
    return [table]


def draw_memory(
    traces: Sequence[Trace], circumstances: Mapping[str, str], path: Path
) -> Path | None:
    """One panel per optimizer and way: bytes in use over an iteration."""
    if not traces:
        return None
    optimizers = list(dict.fromkeys(each.optimizer for each in traces))
    figure, panels = plt.subplots(
        len(optimizers),
        2,
        figsize=(11, 0.8 + 3.0 * len(optimizers)),
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for line, optimizer in zip(panels, optimizers, strict=True):
        pair = [each for each in traces if each.optimizer == optimizer]
        for panel, each in zip(line, pair, strict=True):
            draw_trace(panel, each, max(other.peak for other in pair))
        line[0].set_ylabel(f"{TITLES[optimizer]}\nMB in use", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("seconds (under torch's profiler)", fontsize=9)
    headline(figure, "Memory over one iteration", circumstances)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_trace(panel: Any, each: Trace, highest: int) -> None:
    """One iteration; ``highest`` is the larger peak of the two that are compared."""
    for name, (begin, end) in each.phases.items():
        panel.axvspan(begin, end, color=SHADES[name], linewidth=0)
        if name == "step":  # it may be too short for its name
            panel.text(end, 0.02 * highest / 1e6, f"{name} ", ha="right", fontsize=8)
        elif name != "zero_grad":
            panel.text((begin + end) / 2, 0.02 * highest / 1e6, name, ha="center", fontsize=8)
    end = max(end for _, end in each.phases.values())
    seconds = [second for second, _ in each.points] + [end]
    megabytes = [size / 1e6 for _, size in each.points]
    megabytes.append(megabytes[-1])
    color = OURS if each.way == RELEASED else THEIRS
    panel.fill_between(
        seconds, each.kept / 1e6, megabytes, step="post", color=color, alpha=0.35, linewidth=0
    )
    panel.plot(seconds, megabytes, drawstyle="steps-post", color=color, linewidth=1.2)
    panel.axhline(each.kept / 1e6, color=LINE, linewidth=0.8)
    panel.axhline(each.peak / 1e6, color=color, linewidth=0.8, linestyle="--")
    panel.set_title(f"{each.way}: peak {each.peak / 1e6:.0f} MB", fontsize=10, color=color)
    panel.text(0.0, each.kept / 1e6, " parameters and states", fontsize=8, va="top")
    panel.set(xlim=(0, end), ylim=(0, 1.08 * highest / 1e6))
    panel.spines[["top", "right"]].set_visible(False)
