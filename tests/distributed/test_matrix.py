"""Every optimizer with every declared set of options, on every layout: the result is that of whole tensors."""

from functools import cache

import pytest
from matrix import Outcome, cells, matrix
from processes import run


@cache
def outcomes_of(processes: int) -> list[Outcome]:
    return run(processes, matrix, processes)


@pytest.mark.parametrize(
    ("processes", "name"),
    [
        pytest.param(n, name, id=f"{n}-{name}".replace(" ", "_"))
        for n in (2, 4)
        for name, *_ in cells(n)
    ],
)
def test_equals_the_whole_run(processes: int, name: str) -> None:
    for rank, outcome in enumerate(outcomes_of(processes)):
        assert not outcome[name], f"process {rank}: {outcome[name]}"
