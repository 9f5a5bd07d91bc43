"""torch.distributed.checkpoint: saved with N processes, loaded with M, training goes on with the same numbers."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from checkpoints import Tensors, load, other_loads, save
from processes import run


@cache
def saved(processes: int) -> tuple[str, Tensors]:
    folder = mkdtemp(prefix="ingot")
    return folder, run(processes, save, folder)[0]


@pytest.fixture(scope="module", autouse=True)
def cleared():
    yield
    import shutil

    for processes in (1, 2):
        shutil.rmtree(Path(saved(processes)[0]), ignore_errors=True)
    saved.cache_clear()


@pytest.mark.parametrize(("savers", "loaders"), [(2, 2), (2, 4), (2, 1), (1, 2)])
def test_load_with_another_number_of_processes(savers: int, loaders: int) -> None:
    folder, expected = saved(savers)
    run(loaders, load, folder, expected, savers == loaders)


def test_whole_flattened_and_first_states() -> None:
    run(2, other_loads, 2)
