"""Every optimizer with every declared set of options, over all layouts: the result is that of whole tensors."""

import pytest
from branches import branches
from matrix import matrix
from processes import check_all


@pytest.mark.parametrize("processes", [2, 4])
def test_equals_the_whole_run(processes: int) -> None:
    check_all(processes, matrix, processes)


@pytest.mark.parametrize("processes", [2, 4])
def test_branches_of_adamp_and_guards_of_lamb(processes: int) -> None:
    check_all(processes, branches, processes)
