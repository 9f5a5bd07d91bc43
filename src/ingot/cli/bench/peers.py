"""Who takes part: our optimizers, other people's, and the options that make them do the same work.

An entry knows how to build an optimizer over given parameters. A package that is missing or broken is
reported by name with the reason, never left out silently.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch.nn import Parameter

Build = Callable[[list[Parameter]], torch.optim.Optimizer]

TITLES = {
    "adamw": "AdamW",
    "sgd": "SGD momentum",
    "lamb": "Lamb",
    "adamp": "AdamP",
    "bert_adam": "BertAdam",
    "adam": "Adam",
    "adadelta": "Adadelta",
    "rmsprop": "RMSprop momentum",
    "rmsprop_tf": "RMSpropTF momentum",
}
OURS = {
    "adamw": "NpuFusedAdamW",
    "sgd": "NpuFusedSGD",
    "lamb": "NpuFusedLamb",
    "adamp": "NpuFusedAdamP",
    "bert_adam": "NpuFusedBertAdam",
    "adam": "NpuFusedAdam",
    "adadelta": "NpuFusedAdadelta",
    "rmsprop": "NpuFusedRMSprop",
    "rmsprop_tf": "NpuFusedRMSpropTF",
}
# One set of options per optimizer, for all who take part. Lamb and AdamP without weight decay: with it the
# other packages would do one pass more than they must.
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2),
    "sgd": dict(lr=1e-3, momentum=0.9),
    "lamb": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0),
    "adamp": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
    "bert_adam": dict(lr=1e-3, warmup=0.1, t_total=10_000, weight_decay=0.01, max_grad_norm=1.0),
    "adam": dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0),
    "adadelta": dict(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0),
    "rmsprop": dict(lr=1e-3, alpha=0.99, eps=1e-8, momentum=0.9),
    "rmsprop_tf": dict(lr=1e-3, alpha=0.9, eps=1e-10, momentum=0.9),
}
# Class of torch.optim by optimizer; those that have a fused implementation on the CPU.
TORCH = {
    "adamw": "AdamW",
    "sgd": "SGD",
    "adam": "Adam",
    "adadelta": "Adadelta",
    "rmsprop": "RMSprop",
}
TORCH_FUSED = {"adamw", "sgd", "adam"}
# torch and pytorch-pretrained-bert clip `.grad` in place, so that gradients must be put back between steps.
WRITES_GRADS = {"bert_adam"}


@dataclass(frozen=True)
class Contestant:
    """One implementation of one optimizer.

    Attributes:
        name: what tables and pictures print.
        package: the distribution it comes from, for its version.
        build: makes the optimizer; None if its step is made elsewhere.
        ours: whether it is Ingot's.
    """

    name: str
    package: str
    build: Build | None = None
    ours: bool = False

    @property
    def version(self) -> str:
        """The installed version, or an empty string."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return ""


def load_alone(package: str, folder: str, module: str) -> types.ModuleType:
    """Imports one module of a package without the package's own ``__init__``.

    timm wants torchvision there and pytorch-pretrained-bert wants boto3; their optimizers need neither.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    name = f"_alone_{package}"
    if name not in sys.modules:
        parent = types.ModuleType(name)
        parent.__path__ = [os.path.join(p, folder) for p in found.submodule_search_locations]
        sys.modules[name] = parent
    return importlib.import_module(f"{name}.{module}")


def from_module(module: str, name: str, **options: Any) -> Build:
    """Builds ``module.name(params, **options)``."""

    def build(params: list[Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(importlib.import_module(module), name)(
            params, **options
        )
        return optimizer

    return build


def from_file(package: str, folder: str, module: str, name: str, **options: Any) -> Build:
    """Builds a class of a module that is loaded alone."""

    def build(params: list[Parameter]) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = getattr(load_alone(package, folder, module), name)(
            params, **options
        )
        return optimizer

    return build


def build_deepspeed(params: list[Parameter]) -> torch.optim.Optimizer:
    """DeepSpeedCPUAdam, which compiles its kernel at first use (about a minute)."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # The compiler is driven by ninja, which sits beside this Python even if its environment is not active.
    beside = os.path.dirname(sys.executable)
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = beside + os.pathsep + os.environ.get("PATH", "")
    logging.disable(logging.WARNING)  # it greets at every import
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module("deepspeed.ops.adam")
            optimizer: torch.optim.Optimizer = module.DeepSpeedCPUAdam(
                params, adamw_mode=True, **OPTIONS["adamw"]
            )
    finally:
        logging.disable(logging.NOTSET)
    return optimizer


def ours(optimizer: str, backend: str | None, **extra: Any) -> Contestant:
    """Ingot's own entry; ``backend`` None takes the automatic choice."""
    build = from_module(
        "ingot.optim", OURS[optimizer], **OPTIONS[optimizer], backend=backend, **extra
    )
    return Contestant("ingot" if backend is None else f"ingot {backend}", "ingot", build, True)


def torch_entries(optimizer: str) -> list[Contestant]:
    """torch.optim's implementations: two, or three."""
    fused = optimizer in TORCH_FUSED
    switches: dict[str, dict[str, bool]] = {
        "torch loop": {"foreach": False, **({"fused": False} if fused else {})},
        "torch foreach": {"foreach": True},
        **({"torch fused": {"fused": True}} if fused else {}),
    }
    name, options = TORCH[optimizer], OPTIONS[optimizer]
    return [
        Contestant(title, "torch", from_module("torch.optim", name, **options, **switch))
        for title, switch in switches.items()
    ]


def peers(optimizer: str) -> list[Contestant]:
    """Every other implementation of ``optimizer`` that we know of, installed or not."""
    options = OPTIONS[optimizer]
    if optimizer in TORCH:
        deepspeed = Contestant("DeepSpeedCPUAdam", "deepspeed", build_deepspeed)
        return torch_entries(optimizer) + ([deepspeed] if optimizer == "adamw" else [])
    if optimizer == "rmsprop_tf":
        build = from_file("timm", "optim", "rmsprop_tf", "RMSpropTF", **options)
        return [Contestant("timm", "timm", build)]
    if optimizer == "bert_adam":
        build = from_file("pytorch_pretrained_bert", "", "optimization", "BertAdam", **options)
        return [Contestant("pytorch-pretrained-bert", "pytorch-pretrained-bert", build)]
    name = {"lamb": "Lamb", "adamp": "AdamP"}[optimizer]
    # timm's Lamb leaves out the trust ratio without weight decay unless told otherwise, and clips by default.
    timm: dict[str, Any] = dict(bias_correction=False, always_adapt=True, max_grad_norm=None)
    # pytorch_optimizer's Lamb divides the rate by 1 - beta1^t unless told otherwise.
    other: dict[str, Any] = dict(adam_debias=True)
    timm, other = (timm, other) if name == "Lamb" else ({}, {})
    entries = [
        Contestant(
            "timm",
            "timm",
            from_file("timm", "optim", optimizer, name, **options, **timm),
        ),
        Contestant(
            "pytorch_optimizer loop",
            "pytorch_optimizer",
            from_module("pytorch_optimizer", name, **options, **other, foreach=False),
        ),
        Contestant(
            "pytorch_optimizer foreach",
            "pytorch_optimizer",
            from_module("pytorch_optimizer", name, **options, **other, foreach=True),
        ),
        Contestant(
            "torch_optimizer", "torch_optimizer", from_module("torch_optimizer", name, **options)
        ),
    ]
    if name == "AdamP":
        entries.append(Contestant("adamp", "adamp", from_module("adamp", "AdamP", **options)))
    return entries
