"""NpuFusedRMSprop; the oracle is torch.optim.RMSprop."""

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
from ingot.optim import NpuFusedRMSprop


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """RMSprop as torch computes it tensor by tensor; it does not clip."""
    if "max_grad_norm" in options:
        return None
    return torch.optim.RMSprop(params, **options, foreach=False)


CASE = Case(
    kind=NpuFusedRMSprop,
    signature={
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0,
        "momentum": 0,
        "centered": False,
    },
    options={
        **shipped_with_torch("RMSprop"),
        "momentum alone": {"lr": 0.005, "alpha": 0.9, "momentum": 0.8, "eps": 1e-3},
        "centered alone": {"lr": 0.005, "alpha": 0.8, "centered": True, "eps": 1e-3},
        "clipped": {"lr": 0.005, "momentum": 0.8, "max_grad_norm": 0.5},
    },
    oracle=oracle,
    # The same operations in another order: a rounding apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *below_zero("alpha"),
        *below_zero("eps"),
        *below_zero("weight_decay"),
        *below_zero("momentum"),
        *COMMON_BAD,
        Bad({"centered": "yes"}, "centered"),
    ],
    state_names={name: name for name in ("square_avg", "momentum_buffer", "grad_avg")},
    torch_kind=torch.optim.RMSprop,
)
