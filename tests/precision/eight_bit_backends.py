"""The backends that have 8-bit states, and optimizers with such states, for the tests of steps."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from cases import BACKENDS, Case
from ingot.optim import NpuFusedAdamW
from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params, with_state

SHAPES = [(64, 70), (7,), (4, 8, 12, 12), (4099,)]


def takes(backend: str) -> bool:
    """Whether a backend has 8-bit states; one that has not says so."""
    params = make_params([(64, 64)])
    give_grads(params, 0)
    try:
        NpuFusedAdamW(params, state_dtype="8bit", backend=backend).step()
    except RuntimeError as error:
        assert backend in str(error) and "8bit" in str(error)
        return False
    return True


TAKING = [backend for backend in BACKENDS if takes(backend)]
each_backend = pytest.mark.parametrize("backend", TAKING)


def make(case: Case, params: list[Tensor], **options: Any) -> FusedOptimizer:
    return with_state(case, params, **{"lr": 0.03, "state_dtype": "8bit", **options})
