"""Random parameters, gradients and options, drawn by hypothesis, for the tests of properties."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from cases import Case
from ingot.optimizer import FusedOptimizer
from training import set_grad

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
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
