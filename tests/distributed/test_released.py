"""Gradients released inside backward give the numbers of normal steps, on parameters that processes share."""

from processes import check_all
from released import released


def test_released_gradients() -> None:
    check_all(2, released)
