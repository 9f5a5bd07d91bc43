"""FSDP2, HSDP, tensor parallel and both at once: models train as they do in one process."""

import pytest
from models import sharded_models
from processes import run


@pytest.mark.parametrize("processes", [2, 4])
def test_sharded_models(processes: int) -> None:
    for rank, outcome in enumerate(run(processes, sharded_models, processes)):
        wrong = {name: text for name, text in outcome.items() if text}
        assert not wrong, f"process {rank}:\n" + "\n".join(map("\n".join, wrong.items()))
