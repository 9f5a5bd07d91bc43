"""NpuFusedAdamP; the oracle is the adamp package of the paper's authors."""

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from cases.declare import BAD_BETAS, BAD_LR, COMMON_BAD, ROUNDINGS, Bad, Case, Options, below_zero
from ingot.optim import NpuFusedAdamP


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """AdamP as its authors wrote it.

    eps is the lower limit of the norms there and is added here. That can only turn the choice whether to
    project when a cosine is within a factor of eps / norm of its limit, which the tests' numbers are not.
    """
    import adamp

    if any(name in options for name in ("amsgrad", "max_grad_norm", "maximize")):
        return None
    return adamp.AdamP(params, **options)


CASE = Case(
    kind=NpuFusedAdamP,
    signature={
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0,
        "delta": 0.1,
        "wd_ratio": 0.1,
        "nesterov": False,
    },
    keywords={"amsgrad": False},
    options={
        "default": {},
        "weight decay": {"lr": 0.01, "weight_decay": 0.1},
        # The limit is delta / sqrt(length): these three make rows, whole tensors or nothing project.
        "rows project": {"lr": 0.01, "weight_decay": 0.1, "delta": 100.0, "wd_ratio": 0.5},
        "some project": {"lr": 0.01, "weight_decay": 0.1, "delta": 0.8, "wd_ratio": 0.2},
        "none projects": {"lr": 0.01, "weight_decay": 0.1, "delta": 0.0, "wd_ratio": 0.2},
        "nesterov": {"lr": 0.01, "nesterov": True, "betas": (0.8, 0.98), "delta": 0.8},
        "other eps": {"lr": 0.01, "eps": 1e-3},
        "amsgrad": {"lr": 0.01, "amsgrad": True, "delta": 0.8},
        "maximize": {"lr": 0.01, "maximize": True, "weight_decay": 0.1},
        "clipped": {"lr": 0.01, "max_grad_norm": 0.5, "nesterov": True},
    },
    oracle=oracle,
    # The radial part is folded into the factor of the parameter: a few roundings apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *BAD_BETAS,
        *below_zero("eps"),
        *below_zero("weight_decay"),
        *below_zero("delta"),
        *below_zero("wd_ratio"),
        *COMMON_BAD,
        Bad({"nesterov": "yes"}, "nesterov"),
        Bad({"amsgrad": "yes"}, "amsgrad"),
    ],
    state_names={"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"},
    published=(
        {"eps": 1e-5, "lr": 2e-3, "weight_decay": 0.05},
        (14.885, 65.714, 14.882, 65.75, 104.615, 152.75),
    ),
)
