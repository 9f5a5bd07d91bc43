"""Stochastic rounding of DTensors: split along dim 0 (FSDP2) as if whole, otherwise reproducible."""

import pytest
import torch
from processes import run
from sharded_rounding import job


@pytest.mark.parametrize("processes", [2, 3])
def test_split_parameters(processes: int) -> None:
    outcomes = run(processes, job, processes)
    for results in outcomes:
        for name in ("sgd", "adamw"):
            for kind in ("rows", "copies"):
                pairs = zip(results[f"{name} {kind}"], results[f"{name} whole"], strict=True)
                assert all(torch.equal(one, two) for one, two in pairs), (name, kind)
            pairs = zip(results[f"{name} columns"], results[f"{name} columns again"], strict=True)
            assert all(torch.equal(one, two) for one, two in pairs)
            # Other bits than the whole: rounded up where that was rounded down, never further apart.
            pairs = zip(results[f"{name} columns"], results[f"{name} whole"], strict=True)
            for one, two in pairs:
                torch.testing.assert_close(one, two, rtol=3 * 2.0**-7, atol=0.02)
    for results in outcomes[1:]:
        for name, tensors in results.items():
            assert all(map(torch.equal, tensors, outcomes[0][name])), name
