"""Which steps and parameters ``optimizer.metrics()`` records, under which names, and what stops it."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch

import ingot
from metrics_checks import name_of
from training import fit, give_grads, make_params, small_model, through_a_file, train


def test_steps_that_fail_or_are_skipped_leave_no_record() -> None:
    params, seen = make_params([(4, 3), (5,)]), []
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(every=2, to=seen.append)
    train(optimizer, params, 1)
    good = params[1].grad
    params[1].grad = torch.ones(5).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    params[1].grad = torch.full((5,), torch.inf)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    assert not seen and not optimizer.metrics() and optimizer.metrics().step == 0
    params[1].grad = good
    optimizer.step()
    assert [metrics.step for metrics in seen] == [2]


def test_steps_in_between_take_the_quick_path() -> None:
    pytest.importorskip("ingot._native")
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params, backend="native")
    steps: list[int] = []
    optimizer.track_metrics(every=5, to=lambda metrics: steps.append(metrics.step))
    train(optimizer, params, 6)
    quick: list[bool] = []
    for step in range(7, 21):
        give_grads(params, step)
        remembered = optimizer._quick
        assert remembered is not None
        taken = []

        def spy(*args: Any, real: Any = remembered.step, taken: list[Any] = taken) -> Any:
            taken.append(real(*args))
            return taken[-1]

        optimizer._quick = remembered._replace(step=spy)
        optimizer.step()
        if optimizer._quick is not None and optimizer._quick.step is spy:
            optimizer._quick = remembered
        quick.append(taken == [True])
    assert steps == [5, 10, 15, 20]
    assert quick == [step % 5 != 0 for step in range(7, 21)]


def test_tracking_can_be_stopped_and_is_off_at_first() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.Lamb(params)
    with pytest.raises(RuntimeError, match="track_metrics"):
        optimizer.metrics()
    optimizer.track_metrics(every=1)
    assert repr(optimizer.metrics()) == "Metrics: no tracked step yet"
    optimizer.track_metrics(None)
    train(optimizer, params, 2)
    with pytest.raises(RuntimeError, match="track_metrics"):
        optimizer.metrics()


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "50"])
def test_an_interval_that_is_none_is_refused(every: Any) -> None:
    optimizer = ingot.SGD(make_params([(3,)]), lr=0.1)
    with pytest.raises(ValueError, match="every must be None, or a whole number"):
        optimizer.track_metrics(every)


def test_steps_inside_backward_are_refused() -> None:
    optimizer = ingot.AdamW(make_params([(3,)]))
    optimizer.track_metrics(1)
    with pytest.raises(RuntimeError, match="track_metrics measures steps over all gradients"):
        optimizer.release_gradients()
    optimizer.track_metrics(None)
    with (
        optimizer.release_gradients(),
        pytest.raises(RuntimeError, match="track_metrics measures steps over all gradients"),
    ):
        optimizer.track_metrics(1)


def test_names() -> None:
    model = small_model()
    named = ingot.AdamW(model.named_parameters())
    told = ingot.AdamW(model.parameters())
    nameless = ingot.AdamW([{"params": [p]} for p in model.parameters()])
    named.track_metrics(1)
    told.track_metrics(1, names=model)
    nameless.track_metrics(1, names=[("first", next(model.parameters()))])
    model(torch.ones(1, 4)).sum().backward()
    for optimizer in (named, told, nameless):
        optimizer.step()
    expected = [name for name, _ in model.named_parameters()]
    assert list(named.metrics()) == list(told.metrics()) == expected
    assert list(nameless.metrics())[:3] == ["first", "group1[0]", "group2[0]"]
    with pytest.raises(TypeError, match=r"names must be a torch.nn.Module or pairs"):
        told.track_metrics(1, names=[1, 2])  # type: ignore[list-item]


def test_parameters_without_gradients_are_not_listed() -> None:
    params = make_params([(4, 3), (5,)])
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(1)
    params[1].grad = torch.ones(5)
    optimizer.step()
    assert list(optimizer.metrics()) == [name_of(1)]


def test_a_parameter_that_stands_in_the_list_twice() -> None:
    param = make_params([(4, 3)])[0]
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = ingot.SGD([param, param], lr=0.1)
    optimizer.track_metrics(1)
    train(optimizer, [param], 1)
    assert list(optimizer.metrics()) == [name_of(0), name_of(1)]


def test_counting_goes_on_from_the_state() -> None:
    params = make_params([(4, 3)])
    optimizer = ingot.AdamW(params)
    train(optimizer, params, 7)
    saved = through_a_file(optimizer.state_dict())
    steps: list[int] = []
    again = ingot.AdamW(params)
    again.track_metrics(5, to=lambda metrics: steps.append(metrics.step))
    again.load_state_dict(saved)
    train(again, params, 4)
    optimizer.track_metrics(5, to=lambda metrics: steps.append(metrics.step))
    train(optimizer, params, 4)
    assert steps == [10, 10]


def test_a_copy_goes_on_tracking_and_a_pickle_does_not() -> None:
    model, steps = small_model(), []
    optimizer = ingot.AdamW(model.named_parameters())
    optimizer.track_metrics(2, to=lambda metrics: steps.append(metrics.step))
    fit(model, optimizer, steps=3)
    copied_model, copy = deepcopy((model, optimizer))
    assert copy.metrics() == optimizer.metrics() and copy.metrics().step == 2
    fit(copied_model, copy, steps=1)
    assert steps == [2, 4] and optimizer.metrics().step == 2
    loaded = pickle.loads(pickle.dumps(optimizer))  # the function could not be pickled
    with pytest.raises(RuntimeError, match="track_metrics"):
        loaded.metrics()
    assert "track" not in str(optimizer.state_dict())


def test_the_table_of_a_step() -> None:
    model = small_model()
    optimizer = ingot.Lamb(model.named_parameters(), max_grad_norm=1e-3)
    optimizer.track_metrics(1)
    fit(model, optimizer, steps=1)
    head, columns, *rows = repr(optimizer.metrics()).splitlines()
    assert head.startswith("Metrics of step 1: total norm 1.7") and "clip coefficient 0.0" in head
    assert columns.split()[:3] == ["parameter", "grad_norm", "weight_norm"]
    assert "trust_ratio" in columns and "projected_rows" not in columns
    assert len(rows) == len(list(model.parameters()))
