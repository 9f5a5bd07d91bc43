"""Metrics of parameters that are split over processes are those of whole ones."""

from processes import check_all
from watching import watching


def test_watching() -> None:
    check_all(2, watching)
