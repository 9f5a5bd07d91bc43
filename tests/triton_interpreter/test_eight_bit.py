"""The emitted kernels write the codes and scales of the reference into 8-bit states, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Options
from ingot.storage.blockwise8 import BLOCK
from tolerances import TOLERANCES
from training import assert_same, give_grads, make_params, tensors_of, train

F32, BF16 = torch.float32, torch.bfloat16
# Partial blocks at the end, rows that begin inside of a block, rows in several tiles, and one that keeps float32.
SHAPES = [(64, 70), (2, 2500), (4099,), (7,)]
STOCHASTIC: Options = {"rounding": "stochastic"}
SETTINGS: dict[str, tuple[str, torch.dtype, Options]] = {
    "sgd": ("sgd", F32, {"momentum": 0.9}),
    "sgd, stochastic": ("sgd", BF16, {"momentum": 0.9, **STOCHASTIC}),
    "adamw": ("adamw", F32, {"amsgrad": True}),
    "adamw, stochastic": ("adamw", BF16, {"master_weights": True, **STOCHASTIC}),
    "lamb": ("lamb", BF16, {}),
    "adamp, stochastic": ("adamp", F32, {"delta": 100.0, **STOCHASTIC}),
}


def states_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Codes and scales."""
    codes = {key for key, value in tensors.items() if value.dtype in (torch.int8, torch.uint8)}
    return {key: value for key, value in tensors.items() if key in codes or "_scale" in key}


@pytest.mark.parametrize("setting", SETTINGS)
def test_codes_and_scales(setting: str) -> None:
    name, dtype, options = SETTINGS[setting]
    runs = []
    for backend in ("triton", "reference"):
        params = make_params(SHAPES, dtype)
        one = CASES[name].make(params, **options, state_dtype="8bit", backend=backend)
        train(one, params, 2)
        runs.append(tensors_of(one))
    assert_same(*runs, *((0, 0) if name == "sgd" else TOLERANCES[dtype]))
    assert_same(*map(states_of, runs), 0, 0)
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
