"""Properties that hold for any shapes, types, options and whichever gradients are missing."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from cases import BACKENDS, Case, each_case
from ingot.optimizer import FusedOptimizer
from random_runs import Run, few, options_of, runs
from training import assert_same, tensors_of

# The same number computed in another order; in 16 bits that may be the neighbouring number.
CLOSE = {
    torch.float32: (2e-6, 1e-6),
    torch.float64: (1e-13, 1e-13),
    torch.bfloat16: (2.0**-7, 2.0**-9),
    torch.float16: (2.0**-9, 2.0**-12),
}


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "reference"])
@each_case
def test_every_backend_is_the_reference(case: Case, backend: str) -> None:
    @few
    @given(runs(), options_of(case))
    def check(run: Run, options: dict[str, Any]) -> None:
        results = []
        for name in ("reference", backend):
            params = run.params()
            optimizer = case.make(params, **options, backend=name)
            run.train(optimizer, params)
            results.append(tensors_of(optimizer))
        expected, actual = results
        assert list(actual) == list(expected)
        # The states of a 16-bit parameter are float32, but SGD's weight decay puts the parameter into them.
        follows = case.name == "sgd" and bool(options.get("weight_decay"))
        coarsest = max(CLOSE[dtype] for dtype in run.dtypes)
        for name, value in actual.items():
            rtol, atol = coarsest if follows else CLOSE.get(value.dtype, (0.0, 0.0))
            torch.testing.assert_close(value, expected[name], rtol=rtol, atol=atol)

    check()


@each_case
def test_cutting_into_groups_changes_nothing(case: Case) -> None:
    """A group is a set of options, nothing else, if the norms are those of everything."""

    @few
    @given(runs([torch.float32, torch.float64]), options_of(case), st.integers(0, 5))
    def check(run: Run, options: dict[str, Any], cut: int) -> None:
        if case.name == "bert_adam":
            options = {**options, "clip_scope": "global"}
        results = []
        for whole in (True, False):
            params = run.params()
            pieces = [params[:cut], params[cut:]]
            groups = [{"params": params}] if whole else [{"params": p} for p in pieces if p]
            optimizer = case.make(groups, **options)
            run.train(optimizer, params)
            results.append(tensors_of(optimizer))
        assert_same(results[0], results[1], rtol=2e-6, atol=1e-6)

    check()


@each_case
def test_the_order_of_parameters_changes_nothing(case: Case) -> None:
    @few
    @given(runs([torch.float32, torch.float64]), options_of(case))
    def check(run: Run, options: dict[str, Any]) -> None:
        results = []
        for step in (1, -1):
            params = run.params()
            optimizer = case.make(params[::step], **options)
            run.train(optimizer, params)
            results.append(params)
        for one, two in zip(*results, strict=True):
            torch.testing.assert_close(one, two, rtol=2e-6, atol=1e-6)

    check()


@each_case
def test_an_idle_parameter_changes_nothing(case: Case) -> None:
    """With or without a parameter that never gets a gradient: the others are the same, bit for bit."""

    @few
    @given(runs(), options_of(case))
    def check(run: Run, options: dict[str, Any]) -> None:
        results = []
        for idle in ([], [Parameter(torch.ones(3, 2))]):
            params = run.params()
            optimizer = case.make([*idle, *params], **options)
            run.train(optimizer, params)
            results.append(params)
            assert all(torch.equal(p, torch.ones(3, 2)) for p in idle)
        for one, two in zip(*results, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)

    check()


@each_case
def test_saving_and_loading_at_any_point_changes_nothing(case: Case) -> None:
    @few
    @given(runs(), options_of(case), st.integers(0, 4))
    def check(run: Run, options: dict[str, Any], stop: int) -> None:
        params = run.params()
        straight = case.make(params, **options)
        run.train(straight, params)
        copies = run.params()
        first = case.make(copies, **options)
        run.train(Resumed(case, first, copies, options, stop), copies)
        for one, two in zip(params, copies, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)

    check()


class Resumed:
    """An optimizer that is replaced by one loaded from its state before a certain step."""

    def __init__(
        self, case: Case, first: FusedOptimizer, params: list[Tensor], options: Any, stop: int
    ) -> None:
        self.case, self.now, self.params, self.options = case, first, params, options
        self.left = stop

    def step(self) -> None:
        if self.left == 0:
            saved = self.now.state_dict()
            self.now = self.case.make(self.params, **self.options)
            self.now.load_state_dict(saved)
        self.left -= 1
        self.now.step()


@each_case
def test_nothing_moves_at_rate_zero(case: Case) -> None:
    @few
    @given(runs(), options_of(case))
    def check(run: Run, options: dict[str, Any]) -> None:
        params = run.params()
        optimizer = case.make(params, **{**options, "lr": 0.0})
        run.train(optimizer, params)
        for one, two in zip(params, run.params(), strict=True):
            assert torch.equal(one, two)

    check()
