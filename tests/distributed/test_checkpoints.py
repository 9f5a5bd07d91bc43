"""torch.distributed.checkpoint: saved with N processes, loaded with M, training goes on with the same numbers."""

from pathlib import Path

import pytest
from checkpoints import load, other_loads, save
from processes import run


@pytest.mark.parametrize(("savers", "loaders"), [(2, [2, 4, 1]), (1, [2])])
def test_any_number_of_processes(savers: int, loaders: list[int], tmp_path: Path) -> None:
    expected = run(savers, save, str(tmp_path))[0]
    for processes in loaders:
        run(processes, load, str(tmp_path), expected, savers == processes)


def test_whole_flattened_and_first_states() -> None:
    run(2, other_loads, 2)
