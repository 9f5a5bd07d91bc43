"""Runs a scenario and judges every operation; makes a failing one small."""

from __future__ import annotations

import traceback
import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.formulas import Formula
from fuzz.judge import Judge
from fuzz.sources import WORDS, Scenario, script_of, sources, start_source
from fuzz.world import Difference, Model, Snapshot, same, snapshot

PROGRAM = compile(WORDS, "script.py", "exec")


class SetupError(Exception):
    """A scenario that cannot be: a defect of the fuzzer, or of shrinking."""


@dataclass
class Failure:
    """What went wrong, and where."""

    scenario: Scenario
    at: int  # the number of the operation; -1 for the start
    kind: str
    message: str
    check: str = ""
    trace: str = ""

    def same_as(self, other: Failure | None) -> bool:
        """Whether this is the same trouble, as far as one can tell: the kind, and the first words."""
        return other is not None and (self.kind, self.topic()) == (other.kind, other.topic())

    def topic(self) -> str:
        """The message without numbers."""
        words = "".join(" " if c.isdigit() else c for c in self.message.split("\n")[0])
        return " ".join(words.split()[:4])

    def report(self) -> str:
        small = {**self.scenario, "operations": self.scenario["operations"][: self.at + 1]}
        return (
            f"seed {self.scenario['seed']}: operation {self.at}: {self.kind}: {self.message}\n"
            f"{self.trace}\n# ---- a script that shows it\n{script_of(small, self.check)}\n"
        )


@dataclass
class Outcome:
    """One run."""

    failure: Failure | None
    steps: int = 0
    closest: float = 0.0  # the largest part of a bound that was used
    elements: int = 0  # compared
    unbounded: int = 0  # compared where the error has no bound


def run(scenario: Scenario, formula: Formula | None = None) -> Outcome:
    """Run all operations; stop at the first that is wrong."""
    space: dict[str, Any] = {}
    outcome, at = Outcome(None), -1
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(PROGRAM, space)
            exec(start_source(scenario), space)
            model = Model(scenario, formula)
            model.check_options(space)
            for operation in scenario["operations"]:
                at += 1
                judge_one(model, scenario, operation, space, outcome)
    except Exception as error:
        check = error.check if isinstance(error, Difference) else ""
        kind = type(error).__name__
        trace = "" if isinstance(error, Difference) else traceback.format_exc(limit=-6)
        outcome.failure = Failure(scenario, at, kind, str(error), check, trace)
    finally:
        torch.set_num_threads(threads)
    return outcome


def judge_one(
    model: Model,
    scenario: Scenario,
    operation: dict[str, Any],
    space: dict[str, Any],
    outcome: Outcome,
) -> None:
    """One operation: what it changed is what it should have changed."""
    prepare, act, restore = sources(scenario, operation)
    try:
        exec(prepare, space)
    except Exception as error:
        raise SetupError(f"the script is wrong: {error}") from error
    before = snapshot(space)
    declined = False
    try:
        exec(act, space)
    except RuntimeError as error:
        # A backend that is named may decline shared memory; it must have changed nothing.
        declined = bool(model.shared) and "memory" in str(error)
        if not declined:
            raise
    space["intact"]()
    after = snapshot(space)
    judge = Judge(model, before, after)
    if declined:
        same(before, after)
    elif operation["do"] == "step":
        judge.step(operation)
        outcome.steps += 1
    elif operation["do"] == "clip":
        judge.clip(operation, space["norm"])
    else:
        model.check(operation, before, after)
        if operation["do"] == "zero_grad":
            check_zeroed(operation, before, after)
    outcome.closest = max(outcome.closest, judge.closest)
    outcome.elements += judge.elements
    outcome.unbounded += judge.unbounded
    if operation["do"] != "refuse":
        model.check_options(space)
    exec(restore, space)


def check_zeroed(operation: dict[str, Any], before: Snapshot, after: Snapshot) -> None:
    """Gradients are gone, or zero."""
    for k, grad in after.grads.items():
        gone = operation["set_to_none"] or before.grads[k] is None
        if (grad is not None) if gone else (grad is None or bool(grad.any())):
            raise Difference(f"parameter {k}: zero_grad left {grad}")


def without(scenario: Scenario, k: int) -> Scenario:
    """The scenario without one parameter."""
    small = deepcopy(scenario)
    small["tensors"].pop(k)
    for group in small["groups"]:
        group["params"] = [each for each in group["params"] if each != k]
    small["groups"] = [group for group in small["groups"] if group["params"]]
    kept = []
    for operation in small["operations"]:
        operation.get("grads", {}).pop(k, None)
        if operation["do"] == "rebuild":
            operation["groups"] = [[e for e in params if e != k] for params in operation["groups"]]
        if operation["do"] == "add_group":
            operation["group"]["params"] = [e for e in operation["group"]["params"] if e != k]
        if k not in (operation.get("param"), operation.get("other")):
            kept.append(operation)
    small["operations"] = kept
    return small


def shrink(failure: Failure, formula: Formula | None = None) -> Failure:
    """The same trouble in a smaller scenario: fewer operations, fewer parameters, as long as it stays the same."""
    best, smaller = failure, True
    while smaller:
        smaller = False
        scenario = {**best.scenario, "operations": best.scenario["operations"][: best.at + 1]}
        candidates = [
            {**scenario, "operations": scenario["operations"][:i] + scenario["operations"][i + 1 :]}
            for i in range(len(scenario["operations"]) - 1)
        ]
        candidates += [without(scenario, k) for k in scenario["tensors"]]
        for candidate in candidates:
            if not candidate["groups"]:
                continue
            found = run(deepcopy(candidate), formula).failure
            if best.same_as(found):
                assert found is not None
                best, smaller = found, True
                break
    return best
