"""NpuFusedAdadelta; the oracle is torch.optim.Adadelta."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from cases.declare import (
    BAD_LR,
    COMMON_BAD,
    ROUNDINGS,
    Bad,
    Case,
    Options,
    below_zero,
    shipped_with_torch,
)
from ingot.optim import NpuFusedAdadelta


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """Adadelta as torch computes it tensor by tensor; it does not clip."""
    if "max_grad_norm" in options:
        return None
    return torch.optim.Adadelta(params, **options, foreach=False)


CASE = Case(
    kind=NpuFusedAdadelta,
    signature={"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0},
    options={
        **shipped_with_torch("Adadelta"),
        # A large eps makes large steps: acc_delta counts from the second one on.
        "large steps": {"lr": 0.5, "rho": 0.6, "eps": 1e-2, "weight_decay": 0.1},
        "rho one": {"rho": 1.0, "eps": 1e-3},
        "clipped": {"eps": 1e-3, "max_grad_norm": 0.5},
    },
    oracle=oracle,
    # The same operations in another order: a rounding apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *(Bad({"rho": value}, "rho") for value in (-0.1, 1.1, float("nan"), "0.9", None)),
        *below_zero("eps"),
        *below_zero("weight_decay"),
        *COMMON_BAD,
    ],
    state_names={"square_avg": "square_avg", "acc_delta": "acc_delta"},
    torch_kind=torch.optim.Adadelta,
)
