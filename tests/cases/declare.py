"""What a test case declares about one optimizer; the promise tests read nothing else about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ingot.optimizer import FusedOptimizer

Options = dict[str, Any]  # keyword arguments of the constructor


class Bad(NamedTuple):
    """Options that must be refused, in the constructor, in a param group and in add_param_group."""

    options: Options
    wrong: str  # the option the message names
    error: type[Exception] = ValueError


class Close(NamedTuple):
    """A tolerance; the reason for it stands beside its declaration."""

    rtol: float
    atol: float


@dataclass(frozen=True)
class Case:
    """One optimizer.

    Attributes:
        kind: the class.
        signature: its positional options in order, with their defaults (``REQUIRED`` for none).
        keywords: its own keyword-only options with their defaults.
        options: sets of options under test, by id; every promise test runs over all of them.
        oracle: an implementation nobody here wrote, for one set of options; None where it lacks an option.
        state_names: our name of a state to the oracle's.
        close: how near the reference backend comes to the oracle, per dtype.
        bad: options that are refused.
        torch_kind: the torch.optim class whose checkpoints are interchangeable.
        published: options and sums of parameters that the vendor published for the documents' example.
    """

    kind: type[FusedOptimizer]
    signature: Mapping[str, Any]
    options: Mapping[str, Options]
    oracle: Callable[[Sequence[Tensor], Options], Optimizer | None]
    close: Mapping[torch.dtype, Close]
    bad: Sequence[Bad]
    state_names: Mapping[str, str]
    keywords: Mapping[str, Any] = field(default_factory=dict)
    torch_kind: type[Optimizer] | None = None
    published: tuple[Options, Sequence[float]] | None = None

    @property
    def name(self) -> str:
        """The stem of the optimizer, as in its file name."""
        return self.kind.spec.name

    def make(self, params: Any, **options: Any) -> FusedOptimizer:
        """Build the optimizer; SGD gets a learning rate if none is given."""
        if "lr" not in options and self.signature["lr"] is REQUIRED:
            options["lr"] = 1e-3
        return self.kind(params, **deepcopy(options))  # schedulers write into a tensor lr


REQUIRED = "required"

# The same operations in another order: a rounding or two apart in each of some fifteen steps. The tests' numbers
# reach 4, where one rounding is 2.4e-7 (4.4e-16 in float64).
ROUNDINGS = {torch.float32: Close(2e-6, 1e-6), torch.float64: Close(4e-15, 2e-15)}

# What every class refuses; a case adds its own.
BAD_LR = [Bad({"lr": lr}, "lr") for lr in (-0.1, float("nan"), float("inf"), "1", None, [0.1])] + [
    Bad({"lr": torch.tensor([0.1, 0.2])}, "lr"),
    Bad({"lr": torch.tensor(-1.0)}, "lr"),
]
BAD_BETAS = [
    Bad({"betas": betas}, "betas")
    for betas in ((-0.1, 0.9), (1.0, 0.9), (0.9, 1.0), (0.9, 1.5), (0.9, float("nan")), 0.9, (0.9,))
]


def below_zero(option: str) -> list[Bad]:
    """Values that an option must refuse which has to be at least 0."""
    return [Bad({option: value}, option) for value in (-1e-3, float("nan"), float("inf"), "0.1")]


COMMON_BAD = [
    Bad({"maximize": "yes"}, "maximize"),
    *(Bad({"max_grad_norm": value}, "max_grad_norm") for value in (0, -1.0, float("nan"), "1")),
]


def shipped_with_torch(name: str) -> dict[str, Options]:
    """The option sets torch's own tests run this optimizer with, from its wheel."""
    from torch.testing._internal.common_optimizers import optim_db

    info = next(info for info in optim_db if info.optim_cls.__name__ == name)
    inputs = info.optim_inputs_func(device="cpu", dtype=torch.float32)
    return {f"torch {each.desc}": dict(each.kwargs) for each in inputs}
