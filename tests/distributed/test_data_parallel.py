"""DDP, gradient accumulation and ZeRO: models train as they do in one process."""

from processes import check_all
from replicas import data_parallel


def test_data_parallel() -> None:
    check_all(2, data_parallel)
