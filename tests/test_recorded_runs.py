"""The bits of small trainings are those recorded in recorded_runs.json, on every machine."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ingot.backends.native import NATIVE
from recorded_runs import FILE, HERE, PROCESSES, Cell, cells, digests

RECORDED: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
PROMISED = [cell for cell in cells() if cell.is_promised]
INTENDED = (
    "the numbers changed. If that is intended: `python tests/recorded_runs.py --write`, "
    "and say why in CHANGELOG.md"
)
Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs jobs in processes that are started by the first cell over shards, and stay for all of them."""
    sys.path.insert(0, str(HERE / "distributed"))
    from processes import Crew

    crews: list[Crew] = []

    def job(*arguments: Any) -> list[Any]:
        if not crews:
            crews.append(Crew(PROCESSES))
        return crews[0].run(*arguments)

    yield job
    for crew in crews:
        crew.close()


def test_every_cell_is_recorded() -> None:
    """One line per cell, sorted, and none for a cell that is no more."""
    assert [*RECORDED] == sorted(cell.name for cell in PROMISED), INTENDED


@pytest.mark.parametrize("cell", PROMISED, ids=[cell.name for cell in PROMISED])
def test_bits(cell: Cell, run: Run) -> None:
    if cell.backend == "native" and (reason := NATIVE.unavailable()):
        pytest.skip(reason)
    assert digests([cell], run) == {cell.name: RECORDED[cell.name]}, f"{cell.name}: {INTENDED}"
