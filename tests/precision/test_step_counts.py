"""Step counts of optimizers whose formula needs none, where random bits are made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from ingot.optim import NpuFusedSGD
from training import assert_same, tensors_of


def mixed_model() -> nn.Module:
    """A layer in bfloat16, a norm in float32, and a layer large enough for 8-bit states."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64).bfloat16(), nn.LayerNorm(64), nn.Linear(64, 70))


@pytest.mark.parametrize(
    "options", [{}, {"state_dtype": "8bit"}, {"momentum": 0.9}], ids=["plain", "8bit", "momentum"]
)
def test_torch_takes_the_state_of_a_mixed_model(options: dict[str, Any]) -> None:
    """Its checkpoints demand an entry for every parameter that is trained, or for none."""
    model = mixed_model()
    optimizer = NpuFusedSGD(model.parameters(), lr=0.1, rounding="stochastic", **options)
    for _ in range(3):
        for param in model.parameters():
            param.grad = torch.randn_like(param)
        optimizer.step()
    assert [slots["step"] for slots in optimizer.state.values()] == [3] * 6
    before = {name: value.clone() for name, value in tensors_of(optimizer).items()}
    weights, states = get_state_dict(model, optimizer)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    assert_same(tensors_of(optimizer), before)
