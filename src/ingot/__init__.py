"""Ingot: fused optimizers for PyTorch that run on every device."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ingot.optim import (
        NpuFusedAdadelta,
        NpuFusedAdam,
        NpuFusedAdamP,
        NpuFusedAdamW,
        NpuFusedBertAdam,
        NpuFusedLamb,
        NpuFusedRMSprop,
        NpuFusedRMSpropTF,
        NpuFusedSGD,
    )

__version__ = "0.1.0"

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that torch's backend autoloading can import ingot.npusim while torch itself is being imported.
    if name in __all__:
        return getattr(import_module("ingot.optim"), name)
    if name in ("optim", "optimizer"):
        return import_module(f"ingot.{name}")
    raise AttributeError(f"module 'ingot' has no attribute {name!r}")
