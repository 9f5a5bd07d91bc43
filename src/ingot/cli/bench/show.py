"""What the benchmark shows while it runs and when it is done: progress, notes and tables."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ingot.cli.bench.peers import TITLES
from ingot.cli.bench.quiet import QUIET
from ingot.cli.bench.records import FLOOR, Row
from ingot.cli.bench.shapes import SHAPES


class Show:
    """Progress bars on a terminal, plain lines elsewhere; notes are kept for the end."""

    def __init__(self, console: Console, stages: int) -> None:
        self.console = console
        self.notes: dict[str, str] = {}
        self._stages = stages
        self._done = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", justify="left"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} races"),
            TextColumn("{task.fields[turns]} turns"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=stages, turns=0)
        self._turns = 0

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    @property
    def left(self) -> int:
        """Races to come, with the one that runs."""
        return self._stages - self._done + 1

    def stage(self, title: str) -> None:
        """A race begins."""
        self._turns = 0
        self._done += 1
        self._progress.update(self._task, description=title, completed=self._done - 1, turns=0)
        if not self.console.is_terminal:
            self.console.print(f"[{self._done}/{self._stages}] {title}", markup=False)

    def tick(self) -> None:
        """A turn is over."""
        self._turns += 1
        # Ten times a second is enough: drawing must not disturb what is measured next.
        self._progress.update(self._task, turns=self._turns, refresh=False)

    def missing(self, name: str, reason: str) -> None:
        """Somebody cannot take part."""
        if self.notes.get(name) != reason:
            self.notes[name] = reason
            self.console.print(f"  not taking part: {name}: {reason}", markup=False)

    def brief(self, rows: Sequence[Row]) -> None:
        """One of many short races is over: our own line is enough, in microseconds."""
        for row in rows:
            if row.ours and not self.console.is_terminal:
                text = f"    {micro(row.best_ms):>9} us best {micro(row.median_ms):>9} median  "
                text += f"{TITLES[row.optimizer]}, {row.part}"
                if row.peer_ratio is not None:
                    text += f"   ({row.peer_ratio:.2f} times as fast as {row.peer})"
                self.console.print(text, markup=False, highlight=False)

    def result(self, rows: Sequence[Row]) -> None:
        """A race is over."""
        self._progress.update(self._task, completed=self._done)
        if self.console.is_terminal:
            return
        busy = rows[0].others_cpu
        if busy is not None and busy > QUIET:
            self.console.print(f"    others used {busy:.0%} of the machine", highlight=False)
        for row in sorted(rows, key=lambda row: row.best_ms):
            text = f"    {row.best_ms:10.3f} ms best {row.median_ms:10.3f} median  {row.contestant}"
            if row.peer_ratio is not None:
                text += f"   ({row.peer_ratio:.2f} times as fast as {row.peer})"
            self.console.print(text, markup=False)


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table per optimizer of the main race, then one for all other comparisons."""
    race = [row for row in rows if row.part == "race"]
    found = [race_table(name, race) for name in TITLES if any(r.optimizer == name for r in race)]
    rest = [row for row in rows if row.part in ("precision", "clip")]
    return [*found, rest_table(rest)] if rest else found


def race_table(optimizer: str, race: Sequence[Row]) -> Table:
    """Contestants down, shape lists across; then our ratio to the best of the others."""
    rows = [row for row in race if row.optimizer == optimizer]
    keys = list(dict.fromkeys(row.shapes for row in rows))
    table = Table(
        title=f"{TITLES[optimizer]}: ms, best / median (floor / best)",
        title_justify="left",
    )
    table.add_column("")
    for key in keys:
        table.add_column(SHAPES[key].title, justify="right", no_wrap=True)
    first = {row.contestant: row for row in reversed(rows) if row.shapes == keys[0]}
    names = list(dict.fromkeys(row.contestant for row in rows))
    names.sort(key=lambda name: first[name].best_ms if name in first else float("inf"))
    for name in names:
        mine = {row.shapes: row for row in rows if row.contestant == name}
        style = "bold" if any(row.ours for row in mine.values()) else "dim" if name == FLOOR else ""
        table.add_row(name, *(times(mine.get(key)) for key in keys), style=style)
    table.add_section()
    own = {row.shapes: row for row in rows if row.ours}
    table.add_row("best peer / ours", *(ratio(own.get(key)) for key in keys), style="bold")
    return table


def times(row: Row | None) -> str:
    """Best and median, and the share of the floor."""
    if row is None:
        return "-"
    share = f" ({row.floor_share:.2f})" if row.floor_share is not None else ""
    return f"{number(row.best_ms)} / {number(row.median_ms)}{share}"


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def micro(milliseconds: float) -> str:
    """Milliseconds as microseconds."""
    return number(1e3 * milliseconds)


def ratio(row: Row | None) -> str:
    """Our ratio to the best peer, by best and by median."""
    if row is None or row.peer_ratio is None or row.peer_ratio_median is None:
        return "-"
    return f"{row.peer_ratio:.2f} / {row.peer_ratio_median:.2f}"


def rest_table(rows: Sequence[Row]) -> Table:
    """Precision and clipping: one line each."""
    table = Table(title="Other comparisons: ms per step, best / median", title_justify="left")
    for heading in ("", "ours", "compared with", "", "ratio"):
        table.add_column(heading, justify="right" if heading == "ratio" else "left")
    for row in rows:
        if not row.ours:
            continue
        group = [r for r in rows if (r.part, r.optimizer) == (row.part, row.optimizer)]
        other = next(r for r in group if r.contestant == row.peer)
        title = f"{SHAPES[row.shapes].title} {TITLES.get(row.optimizer, '')} {row.contestant}"
        table.add_row(title, times(row), other.contestant, times(other), ratio(row))
    return table
