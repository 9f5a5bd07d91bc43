"""The branches of AdamP and the guards of Lamb, taken on purpose, are those of whole tensors."""

from functools import cache

import pytest
from behaviours import branches
from layouts import LAYOUTS
from matrix import Outcome
from processes import run


@cache
def outcomes_of(processes: int) -> list[Outcome]:
    return run(processes, branches, processes)


@pytest.mark.parametrize("check", ["adamp_branches", "lamb_guards"])
@pytest.mark.parametrize(
    ("processes", "layout"), [(n, name) for n in (2, 4) for name in LAYOUTS[n]]
)
def test_branch(processes: int, layout: str, check: str) -> None:
    for rank, outcome in enumerate(outcomes_of(processes)):
        assert not outcome[f"{check}-{layout}"], f"process {rank}: {outcome[f'{check}-{layout}']}"
