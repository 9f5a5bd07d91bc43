"""What the quick path holds and lets go, in memory."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from quick_steps import steady
from torch.nn import Parameter

from ingot.backends.native import core
from ingot.optim import NpuFusedAdamW
from ingot.step import quick as quick_path
from training import set_grad, train


def test_a_table_is_used_up_once() -> None:
    """The table of a remembered step belongs to the quick path; running it again is refused."""
    tables = []
    param = Parameter(torch.ones(3))
    optimizer = NpuFusedAdamW([param])
    prepare = core.prepare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "prepare", lambda *a: tables.append(prepare(*a)) or tables[-1])
        train(optimizer, [param], 4)
    assert optimizer._quick is not None and tables
    with pytest.raises(ValueError, match="was handed to remember"):
        core.run(tables[-1], (0.0,) * 8, 1.0)


def test_states_replaced_by_another_thread_stay_until_the_step_is_made() -> None:
    """Freed under the loops, their memory would be gone: the process would end here."""
    param = Parameter(torch.ones(10_000_000))  # so large that freed memory is given back at once
    optimizer = NpuFusedAdamW([param], lr=0.1)
    train(optimizer, [param], 4)
    assert optimizer._quick is not None
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            optimizer.state[param]["exp_avg"] = torch.zeros(10_000_000)

    thread = threading.Thread(target=replace)
    thread.start()
    for _ in range(40):
        optimizer.step()
    done.set()
    thread.join()
    assert optimizer.state[param]["step"] == 44 and bool(param.isfinite().all())


def test_no_memory_to_remember_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has been made by then: it does not raise, and the next one goes the whole way."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(quick_path, "guard_of", fail)
    param = Parameter(torch.ones(3))
    optimizer = NpuFusedAdamW([param], lr=0.1)
    train(optimizer, [param], 5)
    assert optimizer._quick is None and optimizer.state[param]["step"] == 5


def test_a_group_that_reaches_its_optimizer_is_collected() -> None:
    """A trainer in an entry of the user's, say; the garbage collector does not look into a plan."""

    class Trainer:
        pass

    optimizer, param = steady()
    trainer = Trainer()
    trainer.optimizer = optimizer  # type: ignore[attr-defined]
    optimizer.param_groups[0]["trainer"] = trainer
    set_grad(param, torch.ones(3))
    for _ in range(3):
        optimizer.step()
    assert optimizer._quick is not None
    watched = weakref.ref(optimizer)
    del optimizer, trainer
    gc.collect()
    assert watched() is None
