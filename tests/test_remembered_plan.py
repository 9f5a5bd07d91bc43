"""A remembered plan never hides a change: whatever is done between two steps, all backends see it alike."""

import weakref

import pytest
import torch

from ingot.backends.native import NATIVE
from ingot.step.roster import Roster
from plan_changes import BUILDS, CHANGES, set_grads, wake_idle


def make_params():
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5,), (2, 3, 2), (7, 2)]
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return params


def run(build, change, backend):
    """Steps without and with gradients for all, so that both kinds of plans are remembered, then the change."""
    params = make_params()
    optimizer = build(params, backend=backend)
    for seed in range(9):
        set_grads(params, seed)
        if change is wake_idle:
            params[-1].grad = None
        if seed == 5:
            change(optimizer, params)
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("backend", [None, "lists", "lists without the core"])
def test_change_between_steps_is_seen(name, change, backend, monkeypatch):
    if backend == "lists without the core":  # facts about tensors are then found in Python
        backend = "lists"
        monkeypatch.setattr(type(NATIVE), "unavailable", lambda self: "hidden")
    params, optimizer = run(BUILDS[name], change, backend)
    expected, reference = run(BUILDS[name], change, "reference")
    for param, want in zip(params, expected, strict=True):
        tolerance = {"rtol": 0.01, "atol": 1e-3} if param.dtype is torch.bfloat16 else {}
        if param.dtype is torch.float64:  # the steps before the change were float32's
            tolerance = {"rtol": 1.3e-6, "atol": 1e-5}
        torch.testing.assert_close(param, want, **tolerance)
        for key, value in reference.state.get(want, {}).items():
            torch.testing.assert_close(optimizer.state[param][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", BUILDS)
def test_the_change_changes_something(name, change):
    """It leads to other numbers than no change, so the test above can fail."""
    expected, _ = run(BUILDS[name], lambda optimizer, params: None, "reference")
    params, _ = run(BUILDS[name], change, "reference")
    pairs = zip(params, expected, strict=False)
    same = all(torch.equal(one.double(), other.double()) for one, other in pairs)
    assert not same or len(params) != len(expected) or name in getattr(change, "unnoticed", ())


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
@pytest.mark.parametrize(
    "options", [{}, {"max_grad_norm": 1.0}, {"backend": "lists"}], ids=["", "clipped", "lists"]
)
def test_gradients_are_freed(build, options):
    params = make_params()
    optimizer = build(params, **options)
    gone = []
    for seed in range(4):
        set_grads(params, seed)
        gone += [weakref.ref(param.grad) for param in params]
        optimizer.step()
        optimizer.zero_grad()
    assert [grad() for grad in gone] == [None] * len(gone)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_who_the_parameters_are_is_asked_once_per_step(build, monkeypatch):
    asked = []
    holds = Roster.holds
    monkeypatch.setattr(Roster, "holds", lambda *args: asked.append(1) or holds(*args))
    params = make_params()
    optimizer = build(params, backend="reference", max_grad_norm=1.0)
    for step in range(4):
        set_grads(params, step)
        optimizer.step()
        assert len(asked) == step  # the first one makes the roster


def test_what_backends_keep_goes_with_its_parameters():
    """Tables of parameters that are gone would stay on the device, as inside backward each has its own."""
    params = [torch.ones(130, 130, requires_grad=True) for _ in range(3)]
    optimizer = BUILDS["lamb"]([{"params": [param]} for param in params], backend="lists")

    def backward():
        sum(param.square().sum() for param in optimizer.all_params()).backward()

    with optimizer.release_gradients():
        for _ in range(2):
            backward()
            optimizer.step()
        tables = [
            found for kept in optimizer._planner.scratch[2].values() for found in kept.values()
        ]
        gone = [weakref.ref(each) for found in tables for each in found]
        assert gone
        del tables
        optimizer.param_groups.pop()
        backward()
        optimizer.step()
        assert [each() for each in gone] == [None] * len(gone)
