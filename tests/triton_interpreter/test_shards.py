"""The emitted kernels update the shards of DTensors to what one process makes of the whole."""

import torch
from processes import run
from shards import SETTINGS, job, whole


def test_two_processes_against_one() -> None:
    first, second = run(2, job)
    for setting in SETTINGS:
        exact = {} if setting.startswith("lamb") else {"rtol": 0, "atol": 0}  # no sums, no order
        for one, two, expected in zip(first[setting], second[setting], whole(setting), strict=True):
            assert torch.equal(one, two), setting
            torch.testing.assert_close(one, expected, **exact)
