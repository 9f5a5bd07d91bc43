"""NpuFusedBertAdam; the oracle is BertAdam of pytorch-pretrained-bert."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cases.declare import BAD_LR, ROUNDINGS, Bad, Case, Options, below_zero
from ingot.optim import NpuFusedBertAdam


@cache
def optimization() -> Any:
    """The one file of the package, without the package: what that imports is long gone."""
    found = importlib.util.find_spec("pytorch_pretrained_bert")
    assert found is not None and found.submodule_search_locations, "pytorch-pretrained-bert==0.6.2"
    path = f"{found.submodule_search_locations[0]}/optimization.py"
    spec = importlib.util.spec_from_file_location("bert_optimization", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def oracle(params: Sequence[Tensor], options: Options) -> Optimizer | None:
    """BertAdam before Ascend changed it.

    It clips every parameter by itself, so it is compared without clipping; its cosine starts after the warm-up,
    ours (as in the cited code) at step 0; it has no poly.
    """
    options = {"lr": 1e-3, **options}
    names = {"betas", "eps", "amsgrad", "maximize", "clip_scope"} & options.keys()
    schedule = options.get("schedule", "warmup_linear")
    if names or options.get("max_grad_norm", 1.0) > 0 or schedule.endswith(("cosine", "poly")):
        return None
    return optimization().BertAdam(params, **options)


LINEAR = {"lr": 0.01, "warmup": 0.3, "t_total": 12, "max_grad_norm": -1}

CASE = Case(
    kind=NpuFusedBertAdam,
    signature={
        "lr": 1e-3,
        "warmup": -1,
        "t_total": -1,
        "schedule": "warmup_linear",
        "b1": 0.9,
        "b2": 0.999,
        "e": 1e-6,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
    },
    keywords={"betas": None, "eps": None, "amsgrad": False, "clip_scope": "group"},
    options={
        "default": {},
        "unclipped": {"max_grad_norm": -1},
        "linear": LINEAR,
        "linear without warmup": {**LINEAR, "warmup": -1},
        "constant": {**LINEAR, "schedule": "warmup_constant", "weight_decay": 0.0},
        "cosine": {**LINEAR, "schedule": "warmup_cosine"},
        "poly": {**LINEAR, "schedule": "warmup_poly"},
        "past the end": {**LINEAR, "t_total": 5, "e": 1e-3, "b1": 0.8, "b2": 0.98},
        "other spellings": {"lr": 0.01, "betas": (0.8, 0.98), "eps": 1e-4, "amsgrad": True},
        "global clip": {"lr": 0.01, "max_grad_norm": 0.5, "clip_scope": "global"},
        "maximize": {**LINEAR, "maximize": True},
    },
    oracle=oracle,
    # The same operations in another order: a rounding apart, in each step.
    close=ROUNDINGS,
    bad=[
        *BAD_LR,
        *(Bad({"warmup": x}, "warmup") for x in (-0.5, -2, 1.0, 1.5, float("nan"), "0.1")),
        *(Bad({"t_total": x}, "t_total") for x in (0, -2, float("nan"), "10")),
        *(Bad({"schedule": x}, "schedule") for x in ("linear", "warmup_exp", None, 3)),
        *(Bad({"b1": x}, "b1") for x in (-0.1, 1.0, 1.5, float("nan"), "0.9")),
        *(Bad({"b2": x}, "b2") for x in (-0.1, 1.0, 1.5, float("nan"), "0.9")),
        Bad({"betas": (0.9, 1.0)}, "betas"),
        Bad({"betas": (0.9,)}, "betas"),
        Bad({"betas": (0.9, 0.99), "b1": 0.9}, "betas"),
        Bad({"betas": (0.9, 0.99), "b2": 0.9}, "betas"),
        Bad({"eps": -1e-3}, "e"),
        Bad({"eps": 1e-3, "e": 1e-3}, "eps"),
        *below_zero("e"),
        *below_zero("weight_decay"),
        *(Bad({"max_grad_norm": x}, "max_grad_norm") for x in (float("nan"), "1", None)),
        Bad({"maximize": "yes"}, "maximize"),
        Bad({"amsgrad": "yes"}, "amsgrad"),
        Bad({"clip_scope": "all"}, "clip_scope"),
    ],
    state_names={"exp_avg": "next_m", "exp_avg_sq": "next_v"},
    published=(
        {"lr": 0.01, "warmup": 0.1, "t_total": 20, "max_grad_norm": -1},
        (12.982, 61.537, 13.023, 61.5625, 99.305, 146.125),
    ),
)
