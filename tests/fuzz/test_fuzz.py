"""A fixed set of seeds of the fuzzer, and the proof that its tolerances notice a wrong formula."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fuzz import reference
from fuzz.bounds import Bounded, sqrt
from fuzz.formulas import FORMULAS, KINDS, Formula
from fuzz.generate import Generator
from fuzz.reference import Element, States
from fuzz.run import Failure, run, shrink
from fuzz.sources import script_of
from ingot import optim
from known_defects import AVOIDED

BATCHES, RUNS = 8, 10
Mutation = Callable[[Formula], Formula]


def failing(
    seeds: range, formula: Formula | None = None, kind: str = "", force: str = ""
) -> Failure | None:
    """The first thing that goes wrong with these seeds; of one class, or one feature, if told so."""
    avoid = frozenset(AVOIDED) - {force}
    for seed in seeds:
        outcome = run(Generator(seed, avoid, force, kind).scenario(), formula)
        assert outcome.unbounded <= 0.01 * outcome.elements, (
            f"seed {seed}: bounds that mean nothing"
        )
        if outcome.failure is not None:
            return outcome.failure
    return None


def test_every_optimizer_has_a_formula() -> None:
    assert set(KINDS) == set(optim.__all__)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_fixed_seeds(batch: int) -> None:
    found = failing(range(batch * RUNS, (batch + 1) * RUNS))
    assert found is None, shrink(found).report()


@pytest.mark.parametrize("feature", AVOIDED)
def test_known_defects_are_still_there(feature: str) -> None:
    """A row of AVOIDED goes away in the change that mends it; its scenarios must fail until then."""
    assert failing(range(60), force=feature), f"take {feature!r} out of known_defects.AVOIDED"


def scaled(name: str, factor: float) -> Mutation:
    """An option a little off."""

    def mutate(formula: Formula) -> Formula:
        def off(e: Element) -> Element:
            return replace(e, o={**e.o, name: e.o[name] * factor})

        return formula._replace(
            advance=lambda e: formula.advance(off(e)),
            update=lambda e, new: formula.update(off(e), new),
        )

    return mutate


def other_betas(formula: Formula) -> Formula:
    """A decay rate off by a ten-thousandth."""

    def off(e: Element) -> Element:
        b1, b2 = e.o["betas"]
        return replace(e, o={**e.o, "betas": (b1, b2 * 0.9999)})

    return formula._replace(advance=lambda e: formula.advance(off(e)))


def late(formula: Formula) -> Formula:
    """The bias correction of the step before."""
    return formula._replace(update=lambda e, new: formula.update(replace(e, t=e.t + 1), new))


def decay_after(e: Element, new: States) -> Bounded:
    """AdamW with the decay after the step instead of before it."""
    without = replace(e, o={**e.o, "weight_decay": 0})
    return reference.adamw(without, new) * e.scalar(1 - Bounded(e.o["lr"]) * e.o["weight_decay"])


def eps_inside(e: Element, new: States) -> Bounded:
    """AdamW with eps under the square root."""
    bias = e.scalar(reference.complement(e.o["betas"][1], e.t))
    v = new["max_exp_avg_sq" if e.o["amsgrad"] else "exp_avg_sq"]
    keep = e.scalar(1 - Bounded(e.o["lr"]) * e.o["weight_decay"])
    eps = e.scalar(e.o["eps"])
    return e.p * keep - reference.adam_rate(e) * new["exp_avg"] / sqrt(v / bias + eps * eps)


def always_momentum(e: Element) -> States:
    """SGD whose first buffer starts at zero, with dampening."""
    zero = Bounded(np.zeros_like(e.p.value), 0.0, e.unit)
    return reference.sgd_advance(replace(e, old={"momentum_buffer": zero, **e.old}))


MUTATIONS: dict[str, tuple[str, Mutation]] = {
    "adamw lr off by 1e-4": ("NpuFusedAdamW", scaled("lr", 1.0001)),
    "adamw eps off by 1e-3": ("NpuFusedAdamW", scaled("eps", 1.001)),
    "adamw decay off by 1e-3": ("NpuFusedAdamW", scaled("weight_decay", 1.001)),
    "adamw beta2 off by 1e-4": ("NpuFusedAdamW", other_betas),
    "adamw step off by one": ("NpuFusedAdamW", late),
    "adamw decay after the step": ("NpuFusedAdamW", lambda f: f._replace(update=decay_after)),
    "adamw eps inside the root": ("NpuFusedAdamW", lambda f: f._replace(update=eps_inside)),
    "sgd lr off by 1e-4": ("NpuFusedSGD", scaled("lr", 1.0001)),
    "sgd first buffer from zero": ("NpuFusedSGD", lambda f: f._replace(advance=always_momentum)),
    "sgd decay off by 1e-3": ("NpuFusedSGD", scaled("weight_decay", 1.001)),
    "lamb lr off by 1e-4": ("NpuFusedLamb", scaled("lr", 1.0001)),
    "lamb step off by one": ("NpuFusedLamb", late),
    "adamp delta off by half": ("NpuFusedAdamP", scaled("delta", 1.5)),
    "adamp wd_ratio off by 1e-2": ("NpuFusedAdamP", scaled("wd_ratio", 1.01)),
    "bert lr off by 1e-4": ("NpuFusedBertAdam", scaled("lr", 1.0001)),
    "bert schedule one step late": ("NpuFusedBertAdam", late),
}
# The smallest change of each other class that is there.
MUTATIONS |= {
    f"{kind} lr off by 1e-4": (kind, scaled("lr", 1.0001))
    for kind in KINDS
    if not any(kind == known for known, _ in MUTATIONS.values())
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_formula_is_noticed(name: str) -> None:
    kind, mutate = MUTATIONS[name]
    found = failing(range(200), mutate(FORMULAS[kind]), kind=kind)
    assert found is not None and found.kind == "Difference"


def test_a_write_outside_a_tensor_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.optim.Optimizer.zero_grad

    def careless(self: Any, set_to_none: bool = True) -> None:
        original(self, set_to_none)
        param = self.param_groups[0]["params"][0]
        whole = param.detach().as_strided((1,), (1,), param.storage_offset() - 1)
        whole.fill_(0)

    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", careless)
    scenario = Generator(0, frozenset(AVOIDED), kind="NpuFusedSGD").scenario()
    scenario["operations"] = [{"do": "zero_grad", "grads": {}, "set_to_none": True}]
    failure = run(scenario).failure
    assert failure is not None and "memory outside a tensor" in failure.message


def test_a_failure_becomes_a_small_script() -> None:
    """What is printed runs by itself and fails with the same numbers."""
    formula = scaled("lr", 1.01)(FORMULAS["NpuFusedAdamW"])
    found = failing(range(20), formula, kind="NpuFusedAdamW")
    assert found is not None
    small = shrink(found, formula)
    assert len(small.scenario["tensors"]) == 1
    assert small.at < 3
    scenario = {**small.scenario, "operations": small.scenario["operations"][: small.at + 1]}
    exec(script_of(scenario), {})
    with pytest.raises(AssertionError, match="not close"):
        exec(script_of(scenario, small.check), {})
