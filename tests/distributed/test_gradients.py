"""Norms, clipping, overflow and states of split parameters are those of whole ones."""

import pytest
from gradients import gradients
from processes import check_all


@pytest.mark.parametrize("processes", [2, 4])
def test_gradients(processes: int) -> None:
    check_all(processes, gradients, processes)
