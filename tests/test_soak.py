"""A short soak: nothing is left behind by a step; `make soak` makes 200,000."""

import pytest
import torch

from cases import Case, each_case
from soak import Reading, Training, growth, soak

STEPS = 1000


@each_case
def test_nothing_grows(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    first, last, _ = soak(case.kind, STEPS, STEPS, warm_up=600)
    assert not growth(first, last)  # times mean nothing in a suite: the machine is busy
    # Far fewer blocks than steps: not one object is left behind by a step, or by one in three.
    assert last.blocks - first.blocks < STEPS // 5
    assert f"{case.kind.__name__}" in capsys.readouterr().out


def test_a_leak_is_noticed() -> None:
    """One small object per step, and one open file, are found."""
    kept = []
    training = Training(torch.optim.AdamW)
    training.optimizer.register_step_post_hook(lambda *_: kept.append(object()))
    training.steps(100)
    first = Reading.now()
    training.steps(STEPS)
    with open(__file__) as file:
        last = Reading.now()
        assert file.readable()
    assert last.blocks - first.blocks >= STEPS
    assert growth(first, last) == [
        f"open handles: {first.handles} before, {first.handles + 1} after"
    ]
    # One slow block is another program's; a step that grows slower stays so.
    assert not growth(first, first, [10, 10, 90, 11, 10])
    (found,) = growth(first, first, [10, 11, 20, 30, 40])
    assert found == "a step took 10.0 us, then 30.0"
