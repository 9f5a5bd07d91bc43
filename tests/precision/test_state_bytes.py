"""How much memory states take: what ``state_bytes`` reports, and 2.1 bytes per parameter for 8-bit Adam."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from cases import Case, each_case
from ingot.cli.bench.shapes import bert_base
from ingot.optim import NpuFusedAdamW
from training import make_params, train, with_state


def planned(optimizer: NpuFusedAdamW) -> int:
    """The bytes of the states that a first step would make, without making them."""
    spec = optimizer.spec
    tensors = [
        part
        for param in optimizer.all_params()
        for name in spec.variant(optimizer.param_groups[0]).states
        for part in optimizer.precision.format(param, spec.states[name]).new(param, 0.0)
    ]
    return sum(part.numel() * part.element_size() for part in tensors)


@pytest.mark.parametrize(("options", "most"), [({}, 8.0), ({"state_dtype": "8bit"}, 2.1)])
def test_bytes_per_parameter_on_bert_base(options: dict[str, Any], most: float) -> None:
    params = [Parameter(torch.empty(tuple(shape), device="meta")) for shape in bert_base()]
    count = sum(param.numel() for param in params)
    assert count > 109e6
    assert planned(NpuFusedAdamW(params, **options)) / count <= most


@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16, "8bit"], ids=str)
def test_what_is_planned_is_what_a_step_makes(state_dtype: Any) -> None:
    params = make_params([(300, 128), (4099,), (7,), (3, 5)])
    optimizer = NpuFusedAdamW(params, state_dtype=state_dtype)
    assert optimizer.state_bytes() == 0
    train(optimizer, params, 1)
    assert optimizer.state_bytes() == planned(optimizer)


@each_case
def test_eight_bit_states_take_a_quarter(case: Case) -> None:
    sizes = []
    for state_dtype in (None, "8bit"):
        params = make_params([(64, 128)])
        optimizer = with_state(case, params, lr=0.1, state_dtype=state_dtype)
        train(optimizer, params, 1)
        sizes.append(optimizer.state_bytes())
    assert sizes[0] / 4 < sizes[1] < sizes[0] / 3.87
