"""Our optimizers as entries of the table that PyTorch's own optimizer tests run over.

PyTorch describes an optimizer by an ``OptimizerInfo``: option sets, inputs that must raise, schedulers. The wheel has
that table (torch.testing._internal.common_optimizers) but not the tests; the tests here check the same conditions.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
    optim_db,
)

from cases import CASES, Case


def inputs_of(case: Case) -> Any:
    """A function that makes the option sets of a case."""

    def make(device: Any = "cpu", dtype: Any = None) -> list[OptimizerInput]:
        return [
            OptimizerInput(params=None, kwargs=complete(case, deepcopy(options)), desc=name)
            for name, options in case.options.items()
        ]

    return make


def complete(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """SGD of the documents has no default rate; the conditions that do not care give it one."""
    return {"lr": 1e-3, **options} if case.signature["lr"] == "required" else options


def errors_of(case: Case) -> Any:
    """What every optimizer of torch refuses, and what this one does.

    Messages are ours, but begin as torch's do; the kind of error is torch's.
    """

    def make(
        device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Iterator[ErrorOptimizerInput]:
        for error in get_error_inputs_for_all_optims(device, dtype):
            given = error.optimizer_error_input
            given.kwargs = complete(case, given.kwargs)
            if given.desc == "Tensor lr must be 1-element":
                error.error_regex = r"lr.*tensor|tensor.*lr"
            yield error
        for bad in case.bad:
            yield ErrorOptimizerInput(
                OptimizerInput(
                    params=None, kwargs=complete(case, bad.options), desc=str(bad.options)
                ),
                error_type=bad.error,
                error_regex=bad.wrong,
            )

    return make


SCHEDULERS = next(info for info in optim_db if info.optim_cls is torch.optim.SGD).scheduler_inputs

INFOS = {
    stem: OptimizerInfo(
        case.kind,
        optim_inputs_func=inputs_of(case),
        optim_error_inputs_func=errors_of(case),
        scheduler_inputs=SCHEDULERS,
        supported_impls=(),
        not_og_supported_flags=(),
        supports_sparse=False,
        supports_fused_on=("cpu",),
    )
    for stem, case in CASES.items()
}

each_info = pytest.mark.parametrize(
    "info", [pytest.param(info, id=stem) for stem, info in INFOS.items()]
)
each_input = pytest.mark.parametrize(
    ("info", "given"),
    [
        pytest.param(info, given, id=f"{stem}-{given.desc}".replace(" ", "_"))
        for stem, info in INFOS.items()
        for given in info.optim_inputs_func()
    ],
)


def build(info: OptimizerInfo, params: Any, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with the first option set that has a state, and the options given."""
    first = info.optim_inputs_func()[0].kwargs
    case = next(case for case in CASES.values() if case.kind is info.optim_cls)
    if "momentum" in case.signature:
        first = {**first, "momentum": 0.9}
    return info.optim_cls(params, **{**first, **deepcopy(options)})


def problem(
    contiguous: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[Parameter, Parameter, Tensor]:
    """Weight, bias and data of a small least-squares problem."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    if contiguous:
        return Parameter(randn(10, 5)), Parameter(randn(10)), randn(5)
    return Parameter(randn(10, 5, 2)[..., 0]), Parameter(randn(10, 2)[..., 0]), randn(5)


def loss_of(weight: Tensor, bias: Tensor, data: Tensor) -> Tensor:
    """Its loss; what the last layer of a net would make of it."""
    return (weight @ data + bias).abs().square().sum()


def train(optimizer: torch.optim.Optimizer, *tensors: Tensor, steps: int = 1) -> list[float]:
    """A training loop; the losses before each step."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(*tensors)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
