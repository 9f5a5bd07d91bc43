"""NpuFusedAdam; the oracle is torch.optim.Adam."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from cases.declare import (
    BAD_BETAS,
    BAD_LR,
    COMMON_BAD,
    ROUNDINGS,
    Bad,
    Case,
    Options,
    below_zero,
    shipped_with_torch,
)
from ingot.optim import NpuFusedAdam


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """Adam as torch computes it tensor by tensor; it does not clip."""
    if "max_grad_norm" in options:
        return None
    return torch.optim.Adam(params, **options, foreach=False)


CASE = Case(
    kind=NpuFusedAdam,
    signature={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0,
        "amsgrad": False,
    },
    options={
        **shipped_with_torch("Adam"),
        "other betas and eps": {"lr": 0.02, "betas": (0.6, 0.95), "eps": 1e-3},
        # Double: torch divides a tensor lr by its bias correction in the tensor's own type.
        "tensor lr": {"lr": torch.tensor(0.01, dtype=torch.float64), "weight_decay": 0.1},
        "clipped": {"lr": 0.01, "max_grad_norm": 0.5, "amsgrad": True},
    },
    oracle=oracle,
    # Ours multiplies by 1/sqrt(1 - beta2^t), theirs divides by the root: a rounding apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *BAD_BETAS,
        *below_zero("eps"),
        *below_zero("weight_decay"),
        *COMMON_BAD,
        Bad({"amsgrad": 2}, "amsgrad"),
    ],
    state_names={name: name for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")},
    torch_kind=torch.optim.Adam,
)
