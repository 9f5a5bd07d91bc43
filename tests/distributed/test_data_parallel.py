"""DDP, gradient accumulation and ZeRO: models train as they do in one process."""

from models import data_parallel
from processes import run


def test_data_parallel() -> None:
    for rank, outcome in enumerate(run(2, data_parallel)):
        wrong = {name: text for name, text in outcome.items() if text}
        assert not wrong, f"process {rank}:\n" + "\n".join(map("\n".join, wrong.items()))
