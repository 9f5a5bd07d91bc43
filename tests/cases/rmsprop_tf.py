"""NpuFusedRMSpropTF; the oracle is timm's RMSpropTF."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from cases.declare import BAD_LR, COMMON_BAD, ROUNDINGS, Bad, Case, Options, below_zero
from ingot.cli.bench.peers import load_alone
from ingot.optim import NpuFusedRMSpropTF


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """RMSpropTF as timm computes it; its decoupled decay carries lr, so its weight_decay is ours over lr."""
    options = dict(options)
    if "max_grad_norm" in options or "maximize" in options:
        return None
    if options.get("decoupled_decay"):
        options["weight_decay"] /= options.get("lr", 1e-2)
    kind: type[Optimizer] = load_alone("timm", "optim", "rmsprop_tf").RMSpropTF
    return kind(params, **options)


CASE = Case(
    kind=NpuFusedRMSpropTF,
    signature={
        "lr": 1e-2,
        "alpha": 0.9,
        "eps": 1e-10,
        "weight_decay": 0,
        "momentum": 0.0,
        "centered": False,
        "decoupled_decay": False,
        "lr_in_momentum": True,
    },
    options={
        "default": {},
        "weight decay": {"lr": 0.02, "weight_decay": 0.1, "eps": 1e-3},
        "momentum": {"momentum": 0.9, "weight_decay": 0.01},
        "lr outside momentum": {"momentum": 0.9, "lr_in_momentum": False, "alpha": 0.6},
        "lr outside without momentum": {"lr_in_momentum": False, "lr": 0.05},
        "centered": {"centered": True, "eps": 1e-3},
        "centered momentum": {"centered": True, "momentum": 0.8, "weight_decay": 0.1},
        "decoupled decay": {"decoupled_decay": True, "weight_decay": 0.01},
        "decoupled decay momentum": {
            "decoupled_decay": True,
            "weight_decay": 0.01,
            "momentum": 0.9,
            "centered": True,
        },
        # Double: timm multiplies by a tensor lr in the tensor's own type.
        "tensor lr": {"lr": torch.tensor(0.01, dtype=torch.float64), "momentum": 0.5},
        "maximize": {"maximize": True, "momentum": 0.9},
        "clipped": {"max_grad_norm": 0.5, "weight_decay": 0.1},
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
        Bad({"decoupled_decay": "yes"}, "decoupled_decay"),
        Bad({"lr_in_momentum": 2}, "lr_in_momentum"),
    ],
    state_names={name: name for name in ("square_avg", "momentum_buffer", "grad_avg")},
)
