"""What the tensors, states and options must be after every operation that is no step: exactly this, bit for bit."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.formulas import FORMULAS, Formula
from fuzz.sources import Operation, Scenario

HALVES = (torch.float16, torch.bfloat16)


class Difference(AssertionError):
    """The optimizer did something else than it should; ``check`` is a line of source that shows it."""

    def __init__(self, message: str, check: str = "") -> None:
        super().__init__(message)
        self.check = check


@dataclass
class Snapshot:
    """Copies of everything, by the number of the parameter."""

    values: dict[int, Tensor]
    states: dict[int, dict[str, Any]]
    grads: dict[int, Tensor | None]
    groups: list[list[int]]


def snapshot(space: dict[str, Any]) -> Snapshot:
    """How things are now."""
    optimizer, params = space["optimizer"], space["p"]
    numbers = {id(param): k for k, param in params.items()}
    groups = [[numbers[id(param)] for param in g["params"]] for g in optimizer.param_groups]
    present = [k for group in groups for k in group]
    states = {
        k: {
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in optimizer.state.get(params[k], {}).items()
        }
        for k in present
    }
    for slots in states.values():
        if "step" in slots:
            slots["step"] = int(slots["step"])
    return Snapshot(
        {k: params[k].detach().clone() for k in present},
        states,
        {k: None if params[k].grad is None else dense(params[k].grad) for k in present},
        groups,
    )


def dense(grad: Tensor) -> Tensor:
    grad = grad.detach()
    if grad.layout is not torch.strided:
        return grad.to_dense()
    return grad.resolve_conj().resolve_neg().clone()


def number(value: Any) -> float:
    """An option's value; scenarios write tensors as source."""
    if isinstance(value, str) and value.startswith("torch.tensor("):
        value = eval(value, {"torch": torch})
    return float(value)


class Model:
    """The options and groups as they should be, and what operations do to values and states."""

    def __init__(self, scenario: Scenario, formula: Formula | None = None) -> None:
        self.formula = formula or FORMULAS[scenario["kind"]]
        self.kind = scenario["kind"]
        self.common = scenario["common"]
        self.master = bool(self.common.get("master_weights"))
        self.stochastic = self.common.get("rounding") == "stochastic"
        self.options = [self.complete(group["options"]) for group in scenario["groups"]]
        self.shared: dict[int, tuple[int, int, int]] = {}
        self.saved: Any = None

    def complete(self, options: dict[str, Any]) -> dict[str, Any]:
        """All options of a group in the spelling of the formulas."""
        result = {"maximize": False, "max_grad_norm": None, **self.formula.defaults, **self.common}
        result.update(options)
        if "b1" in result or "b2" in result:
            b1, b2 = result["betas"]
            result["betas"] = (result.pop("b1", b1), result.pop("b2", b2))
        if "e" in result:
            result["eps"] = result.pop("e")
        return {**result, "lr": number(result["lr"])}

    def apply(self, operation: Operation, now: Snapshot) -> None:
        """Change the snapshot the way the operation must have changed everything."""
        k = operation.get("param")
        do = operation["do"]
        if k is not None and do in ("move", "cast", "resize", "replace"):
            pair = self.shared.pop(k, None)
            if pair:
                self.shared = {i: each for i, each in self.shared.items() if each != pair}
        if do == "add_group":
            self.options.append(self.complete(operation["group"]["options"]))
        elif do == "save":
            self.saved = deepcopy((self.options, now.states))
        elif do == "load":
            self.options, states = deepcopy(self.saved)
            now.states.update({k: states[k] for k in now.states})
        elif do == "cast":
            now.values[k] = now.values[k].to(eval(operation["dtype"], {"torch": torch}))
        elif do == "clear":
            for each in [k] if k is not None else list(now.states):
                now.states[each] = {}
        elif do == "replace" and not operation["keep"]:
            now.states[k] = {}
        elif do == "regroup":
            now.groups[operation["from"]].remove(k)
            now.groups[operation["to"]].append(k)
        elif do == "option":
            value = operation["value"]
            value = number(value) if operation["name"] == "lr" else value
            self.options[operation["group"]][operation["name"]] = value
        elif do == "share":
            pair = (k, operation["other"], operation["offset"])
            self.shared = {
                i: each for i, each in self.shared.items() if not {*each[:2]} & {*pair[:2]}
            }
            self.shared |= {k: pair, operation["other"]: pair}

    def check(self, operation: Operation, before: Snapshot, after: Snapshot) -> None:
        """An operation that is no step changed what it should and nothing else."""
        expected = deepcopy(before)
        self.apply(operation, expected)
        do = operation["do"]
        if do in ("share", "resize"):  # new values, which the script chose
            touched = {operation["param"], operation.get("other")}
            expected.values.update({k: after.values[k] for k in touched if k is not None})
        if do == "resize":
            expected.states[operation["param"]] = {}
        if do == "add_group":
            fresh = operation["group"]["params"]
            expected.groups.append(fresh)
            for k in fresh:
                expected.values[k], expected.states[k] = after.values[k], {}
        if do in ("load", "rebuild") and not self.formula.counted:
            # It counts steps for stochastic rounding alone; where nothing is rounded, loading drops them.
            for k, slots in expected.states.items():
                if "step" not in after.states[k] and after.values[k].dtype not in HALVES:
                    slots.pop("step", None)
        same(expected, after)

    def check_options(self, space: dict[str, Any]) -> None:
        """The groups have the options that they should."""
        for index, (actual, wanted) in enumerate(
            zip(space["optimizer"].param_groups, self.options, strict=True)
        ):
            for name in ("lr", "weight_decay", "maximize", "max_grad_norm"):
                one, other = actual[name], wanted[name]
                if (None if one is None else float(one)) != (
                    None if other is None else float(other)
                ):
                    check = f"assert optimizer.param_groups[{index}][{name!r}] == {other!r}"
                    raise Difference(
                        f"group {index}: {name} is {one!r} instead of {other!r}", check
                    )


def same(expected: Snapshot, actual: Snapshot) -> None:
    """Equal in every bit of value; states may come back in the type that the parameter asks for."""
    if expected.groups != actual.groups:
        raise Difference(f"the groups are {actual.groups} instead of {expected.groups}")
    for k, value in expected.values.items():
        if actual.values[k].dtype is not value.dtype or not equal(actual.values[k], value):
            raise Difference(f"parameter {k} changed", f"print(p[{k}])")
        old, new = expected.states[k], actual.states[k]
        if value.dtype not in HALVES and "master_param" not in new:
            old.pop(
                "master_param", None
            )  # a wide parameter is its own master: loading drops the copy
        if old.keys() != new.keys():
            raise Difference(f"parameter {k}: states {sorted(new)} instead of {sorted(old)}")
        for name in old:
            counter = name == "step"
            if not (
                old[name] == new[name] if counter else equal(new[name], old[name].to(new[name]))
            ):
                raise Difference(
                    f"parameter {k}: state {name} changed", f"print(optimizer.state[p[{k}]])"
                )


def equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
