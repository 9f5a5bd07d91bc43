"""The emitted kernels write the codes and scales of the reference into 8-bit states, bit for bit."""

from typing import Any

import pytest
import torch
from comparing import BF16, F32, check
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case
from ingot.storage.blockwise8 import BLOCK
from training import assert_same, give_grads, make_params, tensors_of, train

# Partial blocks at the end, rows that begin inside of a block, rows in several tiles, and one that keeps float32.
SHAPES = [(60, 70), (2, 2500), (4099,), (7,)]
ROUNDED: dict[str, Options] = {"nearest": {}, "stochastic": {"rounding": "stochastic"}}
STORED: dict[str, tuple[torch.dtype, Options]] = {
    "float32": (F32, {}),
    "bfloat16": (BF16, {}),
    "bfloat16, master": (BF16, {"master_weights": True}),
}
# What makes an optimizer keep all its states, or AdamP project.
MORE: dict[str, Options] = {
    "sgd": {"momentum": 0.9},
    "adamw": {"amsgrad": True},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "rmsprop_tf": {"momentum": 0.9, "centered": True},
    "adamp": {"delta": 100.0},
}


def states_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Codes and scales."""
    codes = {key for key, value in tensors.items() if value.dtype in (torch.int8, torch.uint8)}
    return {key: value for key, value in tensors.items() if key in codes or "_scale" in key}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("rounding", ROUNDED)
@each_case
def test_codes_and_scales(case: Case, rounding: str, stored: str) -> None:
    dtype, precision = STORED[stored]
    options = {**MORE.get(case.name, {}), **precision, **ROUNDED[rounding]}
    runs = []
    for backend in ("triton", "reference"):
        params = make_params(SHAPES, dtype)
        one = case.make(params, **options, state_dtype="8bit", backend=backend)
        train(one, params, 2)
        runs.append(tensors_of(one))
    check(case, *runs, dtype)
    assert len(states_of(runs[0])) == 6 * len(one.spec.variant(one.param_groups[0]).states)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_poisoned_and_empty_blocks(rounding: str) -> None:
    """NaN and infinity, of either sign, poison their block; a block of zeros has the scale 0."""
    runs = []
    for backend in ("triton", "reference"):
        param = Parameter(torch.ones(5 * 1024 + 3))
        one = CASES["adam"].make([param], state_dtype="8bit", rounding=rounding, backend=backend)
        for step in range(2):
            give_grads([param], step)
            assert param.grad is not None
            param.grad[: 2 * BLOCK] = 0.0
            param.grad[3 * BLOCK] = torch.nan
            param.grad[5 * BLOCK - 1] = -torch.inf
            param.grad[-1] = torch.inf
            one.step()
        runs.append(states_of(tensors_of(one)))
    assert_same(*runs, 0, 0)
    scale = one.state[param]["exp_avg_scale"]
    assert scale.isnan().nonzero().flatten().tolist() == [3, 4, 40] and not scale[:2].any()


def test_blocks_of_another_order_are_left_to_others() -> None:
    """Blocks follow the indices of an element, not its place in memory."""
    weight: Any = torch.randn(8, 8, 8, 16).to(memory_format=torch.channels_last)
    param = Parameter(weight)
    param.grad = torch.ones_like(param)
    one = CASES["adamw"].make([param], state_dtype="8bit", backend="triton")
    with pytest.raises(RuntimeError, match="different orders"):
        one.step()
