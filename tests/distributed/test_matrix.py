"""Every optimizer with every declared set of options, over all layouts: the result is that of whole tensors.

One cell: ``pytest tests/distributed/test_matrix.py -k "2-rows-lamb-defaults"``.
"""

from collections.abc import Iterator

import pytest
from branches import branches
from matrix import cell, cells
from processes import Crew, check_all

CELLS = [
    pytest.param(processes, name, id=f"{processes}-{name}".replace(" ", "_"))
    for processes in (2, 4)
    for name, *_ in cells(processes)
]
crews: dict[int, Crew] = {}


@pytest.fixture(scope="module", autouse=True)
def end_crews() -> Iterator[None]:
    """Processes stay for all cells: starting them takes longer than most."""
    yield
    for crew in crews.values():
        crew.close()
    crews.clear()


@pytest.mark.parametrize(("processes", "name"), CELLS)
def test_equals_the_whole_run(processes: int, name: str) -> None:
    crew = crews.get(processes) or crews.setdefault(processes, Crew(processes))
    try:
        crew.run(cell, processes, name)
    except BaseException:
        crews.pop(processes).close()  # its processes may not be in step with each other any more
        raise


@pytest.mark.parametrize("processes", [2, 4])
def test_branches_of_adamp_and_guards_of_lamb(processes: int) -> None:
    check_all(processes, branches, processes)
