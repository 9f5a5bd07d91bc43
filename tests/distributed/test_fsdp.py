"""FSDP2, HSDP, tensor parallel and both at once: models train as they do in one process."""

import pytest
from models import sharded_models
from processes import check_all


@pytest.mark.parametrize("processes", [2, 4])
def test_sharded_models(processes: int) -> None:
    check_all(processes, sharded_models, processes)
