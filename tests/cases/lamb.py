"""NpuFusedLamb; the oracle is torch_optimizer's Lamb."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from cases.declare import BAD_BETAS, BAD_LR, COMMON_BAD, ROUNDINGS, Bad, Case, Options, below_zero
from ingot.optim import NpuFusedLamb

LACKING = ("use_global_grad_norm", "max_grad_norm", "maximize", "bias_correction")


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """The first public LAMB, with the clamp of the weight norm that the documents' version has.

    Its ``debias`` puts the correction into the rate, so ``eps`` counts differently there: not compared.
    """
    import torch_optimizer

    options = dict(options)
    clamp_value = options.pop("max_weight_norm", 10.0)
    if any(name in options for name in LACKING):
        return None
    limit = float("inf") if clamp_value is None else clamp_value
    return torch_optimizer.Lamb(params, **options, clamp_value=limit, debias=False)


CASE = Case(
    kind=NpuFusedLamb,
    signature={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0,
        "adam": False,
        "use_global_grad_norm": False,
    },
    keywords={"bias_correction": False, "max_weight_norm": 10.0},
    options={
        "default": {},
        "weight decay": {"lr": 0.01, "weight_decay": 0.1},
        "adam": {"lr": 0.01, "adam": True, "weight_decay": 0.01},
        "other betas and eps": {"lr": 0.01, "betas": (0.7, 0.95), "eps": 1e-3},
        "small weight norm": {"lr": 0.01, "max_weight_norm": 0.5},
        "any weight norm": {"lr": 0.01, "max_weight_norm": None, "weight_decay": 0.01},
        "global norm": {"lr": 0.01, "use_global_grad_norm": True},
        "bias correction": {"lr": 0.01, "bias_correction": True, "max_weight_norm": None},
        "maximize": {"lr": 0.01, "maximize": True, "weight_decay": 0.1},
        "clipped": {"lr": 0.01, "max_grad_norm": 0.5, "use_global_grad_norm": True},
    },
    oracle=oracle,
    # The oracle adds its norms up in the type of the parameter, we in double precision.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *BAD_BETAS,
        *below_zero("eps"),
        *below_zero("weight_decay"),
        *COMMON_BAD,
        Bad({"adam": "yes"}, "adam"),
        Bad({"use_global_grad_norm": 3}, "use_global_grad_norm"),
        Bad({"bias_correction": None}, "bias_correction"),
        *(Bad({"max_weight_norm": x}, "max_weight_norm") for x in (0, -1, float("nan"), "1")),
    ],
    state_names={"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
    published=({"lr": 0.01, "eps": 1e-5}, (13.407, 62.683, 13.414, 62.625, 101.258, 149.0)),
)
