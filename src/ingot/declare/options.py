"""The rules options obey: one rule per kind of option, checked for every parameter group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim.optimizer import required

Number = float | Tensor
_LISTS = ("params", "param_names")  # of a group, which are no options


class OptionError(ValueError, TypeError):
    """Options that contradict each other.

    Differs from torch_npu: its documents say TypeError, torch.optim raises ValueError; this is both.
    """


class Default(float):
    """A default that can be told from the same number given by the caller."""


@dataclass(frozen=True)
class Rule:
    """What an option may be: ``noun`` begins the message the way torch.optim words it."""

    noun: str
    test: Callable[[Any], bool]
    allowed: str

    def check(self, owner: str, option: str, value: Any) -> None:
        """Raise ValueError unless the rule holds; a value of a wrong type fails like a wrong value."""
        try:
            good = self.test(value)
        except (TypeError, ValueError, RuntimeError, ArithmeticError):
            good = False
        if not good:
            raise ValueError(
                f"Invalid {self.noun}: {value!r} ({owner}: {option} must be {self.allowed})"
            )


def check_all(owner: str, rules: Mapping[str, Rule], group: Mapping[str, Any]) -> None:
    """Check every option of a group that has a rule; one that is still to be given counts as good."""
    lacks = [option for option in rules if option not in group]
    if lacks:
        raise ValueError(f"{owner}: a parameter group must have {', '.join(lacks)}")
    for option, rule in rules.items():
        if group[option] is not required:
            rule.check(owner, option, group[option])


def at_least(low: float, noun: str) -> Rule:
    """A finite number, ``low`` or more."""
    return Rule(noun, lambda x: low <= real(x) < math.inf, f"a finite number >= {low:g}")


def real(value: Any) -> float:
    """The value of a number; a bool, a string or a tensor of several elements is not one."""
    if isinstance(value, (bool, str, bytes)) or (isinstance(value, Tensor) and value.numel() != 1):
        raise TypeError(value)
    return float(value)


def is_flag(value: Any) -> bool:
    """True, False, or the 0 and 1 that older scripts pass."""
    return not isinstance(value, Tensor) and value in (True, False)


def may_change(group: Mapping[str, Any]) -> bool:
    """Whether an option of a group can be changed in place, as a list, a tensor or an array of numpy can.

    Tensors on an accelerator are not looked at again: the host would wait for it in every step.
    """
    for option, value in group.items():
        values = value if type(value) is tuple else (value,)
        loose = any(map(is_loose, values))
        if loose and option not in _LISTS:
            return True
    return False


def is_loose(value: Any) -> bool:
    """Whether a value has elements that can be replaced, and read without waiting for a device."""
    if isinstance(value, Tensor):
        return value.device.type == "cpu"
    return hasattr(value, "__setitem__") and not isinstance(value, dict)


class _Betas(Rule):
    """Two decay rates; names the one that is wrong."""

    def check(self, owner: str, option: str, value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise ValueError(
                f"Invalid {self.noun}s: {value!r} ({owner}: {option} must be {self.allowed})"
            )
        for index, beta in enumerate(value):
            one = Rule(f"{self.noun} at index {index}", BETA.test, BETA.allowed)
            one.check(owner, f"{option}[{index}]", beta)


LR = Rule(
    "learning rate",
    lambda x: 0 <= real(x) < math.inf,
    "a finite number >= 0, or a tensor of one such number",
)
EPS = at_least(0, "epsilon value")
WEIGHT_DECAY = at_least(0, "weight_decay value")
MOMENTUM = at_least(0, "momentum value")
ALPHA = at_least(0, "alpha value")
NONNEGATIVE = at_least(0, "value")
FINITE = Rule("value", lambda x: math.isfinite(real(x)), "a finite number")
FLAG = Rule("flag", is_flag, "True or False")
BETA = Rule("beta parameter", lambda x: 0 <= real(x) < 1, "in the interval [0, 1)")
BETAS = _Betas("beta parameter", bool, "a pair of numbers in the interval [0, 1)")
MAX_GRAD_NORM = Rule(
    "max_grad_norm value", lambda x: x is None or real(x) > 0, "None or a number > 0"
)
