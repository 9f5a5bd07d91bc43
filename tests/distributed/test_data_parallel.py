"""DDP, gradient accumulation and ZeRO: models train as they do in one process."""

from models import data_parallel
from processes import check_all


def test_data_parallel() -> None:
    check_all(2, data_parallel)
