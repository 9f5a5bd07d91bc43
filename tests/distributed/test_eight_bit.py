"""8-bit states under FSDP2, HSDP, ZeRO and any other layout, and their checkpoints on other numbers of processes."""

from pathlib import Path

from eight_bit import load, save, shared
from processes import check_all, run


def test_shared_parameters() -> None:
    check_all(2, shared)


def test_any_number_of_processes(tmp_path: Path) -> None:
    saved, after = run(2, save, str(tmp_path))[0]
    for processes in (2, 3, 1):
        run(processes, load, str(tmp_path), saved, after, 2)
