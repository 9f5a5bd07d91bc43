"""NpuFusedSGD; the oracle is torch.optim.SGD."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from cases.declare import (
    BAD_LR,
    COMMON_BAD,
    REQUIRED,
    ROUNDINGS,
    Bad,
    Case,
    Options,
    below_zero,
    shipped_with_torch,
)
from ingot.declare.options import OptionError
from ingot.optim import NpuFusedSGD


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """SGD as torch computes it tensor by tensor; it does not clip."""
    if "max_grad_norm" in options:
        return None
    return torch.optim.SGD(params, **options, foreach=False)


CASE = Case(
    kind=NpuFusedSGD,
    signature={
        "lr": REQUIRED,
        "momentum": 0,
        "dampening": 0,
        "weight_decay": 0,
        "nesterov": False,
    },
    options={
        # torch has a default learning rate, this class has not.
        **{name: {"lr": 1e-3, **kwargs} for name, kwargs in shipped_with_torch("SGD").items()},
        "everything but nesterov": {
            "lr": 0.02,
            "momentum": 0.8,
            "dampening": 0.3,
            "weight_decay": 0.1,
            "maximize": True,
        },
        "clipped": {"lr": 0.02, "momentum": 0.8, "nesterov": True, "max_grad_norm": 0.5},
    },
    oracle=oracle,
    # The same operations in another order: a rounding apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *below_zero("momentum"),
        *below_zero("weight_decay"),
        *COMMON_BAD,
        Bad({"dampening": float("nan")}, "dampening"),
        Bad({"nesterov": "yes"}, "nesterov"),
        Bad({"nesterov": True}, "nesterov", OptionError),
        Bad({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov", OptionError),
    ],
    state_names={"momentum_buffer": "momentum_buffer"},
    torch_kind=torch.optim.SGD,
)
