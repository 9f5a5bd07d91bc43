"""Rows of results and a display without a terminal, for the tests of the benchmark."""

from __future__ import annotations

import io

from rich.console import Console

from ingot.cli.bench.records import Row
from ingot.cli.bench.show import Show


def make_show() -> Show:
    return Show(Console(file=io.StringIO(), width=200), stages=1)


def some_row(contestant: str, best: float, median: float, ours: bool = False) -> Row:
    return Row("race", "adamw", "tiny", 3, 41, "float32", contestant, "", ours, 1, best, median)
