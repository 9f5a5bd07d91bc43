"""What a benchmark writes down: rows, how they compare, and the CSV file, written and read."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from ingot.cli.bench.measure import Entry
from ingot.cli.bench.peers import Contestant
from ingot.cli.bench.shapes import ShapeList

FLOOR = "memory floor"
SMALL_FLOOR = "floor"  # of small models: the math alone, or an iteration without a step


@dataclass
class Row:
    """One contestant on one shape list."""

    part: str
    optimizer: str
    shapes: str
    tensors: int
    parameters: int
    dtype: str
    contestant: str
    version: str
    ours: bool
    rounds: int
    best_ms: float
    median_ms: float
    floor_share: float | None = None  # the floor's time / this one's
    peer: str = ""  # ours only: the fastest other implementation
    peer_ratio: float | None = None  # ours only: its time / ours
    peer_ratio_median: float | None = None  # the same of the medians
    peak_mb: float | None = None  # part memory: the most that is in use during an iteration
    grads_saved: float | None = None  # and by how much of the gradients' memory the peak is lower
    state_bytes: int | None = None  # of all states, where they are compared
    others_cpu: float | None = None  # share of all cores that other processes used meanwhile
    threads: int = field(default_factory=torch.get_num_threads)


def row_of(
    entry: Entry, contestant: Contestant, shapes: ShapeList, optimizer: str, part: str, rounds: int
) -> Row:
    """The row of one entry, not yet compared with the others."""
    return Row(
        part=part,
        optimizer=optimizer,
        shapes=shapes.key,
        tensors=shapes.tensors,
        parameters=shapes.parameters,
        dtype="float32",
        contestant=contestant.name,
        version=contestant.version,
        ours=contestant.ours,
        rounds=rounds,
        best_ms=entry.best,
        median_ms=entry.median,
    )


def compare(rows: Sequence[Row]) -> None:
    """Fills in the shares of the floor and our ratios, among rows of the same race."""
    floor = next((row for row in rows if row.contestant in (FLOOR, SMALL_FLOOR)), None)
    others = [row for row in rows if not row.ours and row is not floor]
    peer = min(others, key=lambda row: row.best_ms, default=None)
    for row in rows:
        if floor is not None:
            row.floor_share = floor.best_ms / row.best_ms
        if row.ours and peer is not None:
            row.peer = peer.contestant
            row.peer_ratio = peer.best_ms / row.best_ms
            # The fastest other by median need not be the fastest by its best step.
            row.peer_ratio_median = min(other.median_ms for other in others) / row.median_ms


def columns(circumstances: Mapping[str, str]) -> list[str]:
    """The names in the first line of the CSV."""
    return list(dict.fromkeys([*(item.name for item in fields(Row)), *circumstances]))


def write_csv(path: Path, rows: Sequence[Row], circumstances: Mapping[str, str]) -> None:
    """One line per row, each with the machine, the versions and the commit."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns(circumstances), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            values = {
                name: "" if value is None else f"{value:.5g}" if isinstance(value, float) else value
                for name, value in asdict(row).items()
            }
            writer.writerow({**circumstances, **values})  # a row knows its own number of threads


def read_csv(path: Path, parts: Sequence[str] = ()) -> tuple[list[Row], dict[str, str]]:
    """The rows that :func:`write_csv` has written, and the circumstances of the run; with ``parts``, of these alone.

    A column that the file does not have, because an older version wrote it, is as if nothing had been measured.
    """
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    if not found or "part" not in found[0]:
        raise ValueError(f"{path} holds no results of `ingot bench`")
    found = [each for each in found if not parts or each["part"] in parts]
    if not found:
        return [], {}
    rows = [Row(**values_of(each)) for each in found]
    names = {item.name for item in fields(Row)}
    # A part that was measured again has another commit and another date than the rest.
    circumstances = {
        name: ", ".join(dict.fromkeys(each[name] for each in found))
        for name in found[0]
        if name not in names
    }
    # Small models are timed on one thread too; the run had as many as its other parts.
    return rows, {**circumstances, "threads": str(max(row.threads for row in rows))}


def values_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a row from a line of the file; an empty text is None where that is allowed."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(Row).items():
        kinds = get_args(hint) or (hint,)
        text = texts.get(name)
        if text is None or (text == "" and type(None) in kinds):
            continue
        values[name] = text == "True" if bool in kinds else kinds[0](text)
    return values
