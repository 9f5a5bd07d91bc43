"""Properties that hold for any shapes, types, options and whichever gradients are missing."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from cases import BACKENDS, Case, each_case
from ingot.optimizer import FusedOptimizer
from training import assert_same, set_grad, tensors_of

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# The same number computed in another order; in 16 bits that may be the neighbouring number.
CLOSE = {
    torch.float32: (2e-6, 1e-6),
    torch.float64: (1e-13, 1e-13),
    torch.bfloat16: (2.0**-7, 2.0**-9),
    torch.float16: (2.0**-9, 2.0**-12),
}
few = settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=12,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

shapes = st.lists(
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 17]), max_size=4).map(tuple), min_size=1, max_size=6
)


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, width=32)


def option_strategies(case: Case) -> dict[str, st.SearchStrategy[Any]]:
    """Any allowed value of any option; rates not so large that numbers grow without bound."""
    beta = numbers(0, 0.9990234375)
    of_kind: dict[str, st.SearchStrategy[Any]] = {
        "lr": numbers(0, 0.125),
        "betas": st.tuples(beta, beta),
        "b1": beta,
        "b2": beta,
        "eps": numbers(2.0**-20, 0.125),
        "e": numbers(2.0**-20, 0.125),
        "weight_decay": numbers(0, 0.5),
        "momentum": numbers(0, 0.9375),
        "dampening": numbers(0, 1),
        # A row of one element has a cosine of 1: with a delta of 1, rounding would decide.
        "delta": st.sampled_from([0.0, 0.1, 0.7, 1.9]),
        "wd_ratio": numbers(0, 1),
        "warmup": st.sampled_from([-1, 0.0, 0.25, 0.5]),
        "t_total": st.sampled_from([-1, 2, 5, 50]),
        "schedule": st.sampled_from(
            ["warmup_linear", "warmup_cosine", "warmup_constant", "warmup_poly"]
        ),
        "max_weight_norm": st.sampled_from([None, 0.5, 10.0]),
        "clip_scope": st.sampled_from(["group", "global"]),
        "max_grad_norm": st.sampled_from([0.5, 5.0]),
        "maximize": st.booleans(),
    }
    flags = {"amsgrad", "adam", "use_global_grad_norm", "bias_correction"}
    if case.name == "adamp":
        flags.add("nesterov")
    own = {*case.signature, *case.keywords, "maximize", "max_grad_norm"}
    if case.name == "bert_adam":
        own -= {"betas", "eps"}
    return {
        name: st.booleans() if name in flags else of_kind[name]
        for name in sorted(own)
        if name in flags or name in of_kind
    }


def options_of(case: Case) -> st.SearchStrategy[dict[str, Any]]:
    strategies = option_strategies(case)
    required = {"lr": strategies.pop("lr")}
    return st.fixed_dictionaries(required, optional=strategies)


@dataclass
class Run:
    """Parameters and, for every step, their gradients; None where one is missing."""

    dtypes: list[torch.dtype]
    shapes: list[tuple[int, ...]]
    present: list[list[bool]]
    seed: int

    def params(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        return [
            Parameter(torch.randn(shape, generator=generator).to(dtype))
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def train(self, optimizer: FusedOptimizer, params: list[Tensor]) -> None:
        generator = torch.Generator().manual_seed(self.seed + 1)
        for present in self.present:
            for param, there in zip(params, present, strict=True):
                grad = torch.randn(param.shape, generator=generator).to(param.dtype)
                param.grad = None
                if there:
                    set_grad(param, grad)
            optimizer.step()


@st.composite
def runs(draw: Any, dtypes: list[torch.dtype] = DTYPES) -> Run:
    chosen = draw(shapes)
    count = len(chosen)
    types = draw(st.lists(st.sampled_from(dtypes), min_size=count, max_size=count))
    row = st.lists(st.sampled_from([True, True, True, False]), min_size=count, max_size=count)
    present = draw(st.lists(row, min_size=1, max_size=5))
    return Run(types, chosen, present, draw(st.integers(0, 1000)))


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
