"""The fuzzer judges 8-bit states: a fixed set of seeds, and the proof that wrong codes are noticed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz import codes
from fuzz.formulas import KINDS
from fuzz.generate import CODES, Generator
from fuzz.run import Failure, run, shrink
from fuzz.sources import script_of
from ingot.storage import blockwise8
from known_defects import AVOIDED


def failing(seeds: range, kind: str = "", backend: str = "") -> Failure | None:
    """The first thing that goes wrong with these seeds, in scenarios with 8-bit states."""
    for seed in seeds:
        scenario = Generator(seed, frozenset(AVOIDED), CODES, kind).scenario()
        if backend:
            scenario["backend"] = backend
        outcome = run(scenario)
        assert outcome.unbounded <= 0.01 * outcome.elements, (
            f"seed {seed}: bounds that mean nothing"
        )
        if outcome.failure is not None:
            return outcome.failure
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_seeds(kind: str) -> None:
    found = failing(range(4), kind)
    assert found is None, shrink(found).report()


def off_by_one(count: int) -> Any:
    """Blocks that begin one element early; the last one takes what is left."""
    return np.minimum((np.arange(count) + 1) // codes.BLOCK, (count - 1) // codes.BLOCK)


def rounded_down(least: Any, most: Any, stochastic: bool) -> tuple[Any, Any]:
    return np.floor(least), np.floor(most)


MUTATIONS: dict[str, tuple[str, Any]] = {
    "scales off by 1 %": ("PEAKS", {False: 251.0 * 1.01, True: 127.0 * 1.01}),
    "unsigned scales off by 1e-5": ("PEAKS", {False: 251.0 * 1.00001, True: 127.0}),
    "blocks that begin one element early": ("block_of", off_by_one),
    "codes rounded down": ("rounded", rounded_down),
    "unsigned codes of a logarithm": ("position", lambda y: 32 * np.log2(y)),
    "no state kept in codes below 5000": ("FEWEST", 5000),
    "updates from stored states": ("TWO_PASS", KINDS),
    "updates of LAMB and AdamP from unrounded states": ("TWO_PASS", ()),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_judge_disagrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, wrong = MUTATIONS[name]
    monkeypatch.setattr(codes, attribute, wrong)
    kind = "NpuFusedLamb" if "LAMB" in name else "NpuFusedAdamW"
    found = failing(range(30), kind)
    assert found is not None and found.kind == "Difference"


def truncated(self: Any, x: torch.Tensor, noise: Any) -> torch.Tensor:
    return ORIGINAL(self, x.trunc_() if self.signed else x, noise)


def above_zero(self: Any, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Numbers that are read 0.1 % too large."""
    return VALUES(self, codes, scale) * 1.001


ORIGINAL: Callable[..., torch.Tensor] = blockwise8.Blockwise8.codes
VALUES: Callable[..., torch.Tensor] = blockwise8.Blockwise8.values


@pytest.mark.parametrize(("attribute", "wrong"), [("codes", truncated), ("values", above_zero)])
def test_a_wrong_optimizer_is_noticed(
    attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockwise8.Blockwise8, attribute, wrong)
    found = failing(range(30), "NpuFusedAdam", "reference")
    assert found is not None and found.kind == "Difference"


def test_a_wrong_code_becomes_a_small_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed runs by itself and fails with the same numbers."""
    monkeypatch.setattr(codes, "rounded", rounded_down)
    found = failing(range(30), "NpuFusedAdamW")
    assert found is not None
    small = shrink(found)
    scenario = {**small.scenario, "operations": small.scenario["operations"][: small.at + 1]}
    exec(script_of(scenario), {})
    with pytest.raises(AssertionError):
        exec(script_of(scenario, small.check), {})
