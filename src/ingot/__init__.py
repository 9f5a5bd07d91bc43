"""Ingot: fused optimizers for PyTorch that run on every device."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers and editors do not run __getattr__ below. A test compares this list with what it finds.
    from ingot import metrics as metrics
    from ingot.factory import create_optimizer as create_optimizer
    from ingot.factory import list_optimizers as list_optimizers
    from ingot.groups import param_groups as param_groups
    from ingot.optim import SGD as SGD
    from ingot.optim import Adadelta as Adadelta
    from ingot.optim import Adam as Adam
    from ingot.optim import AdamP as AdamP
    from ingot.optim import AdamW as AdamW
    from ingot.optim import BertAdam as BertAdam
    from ingot.optim import Lamb as Lamb
    from ingot.optim import NpuFusedAdadelta as NpuFusedAdadelta
    from ingot.optim import NpuFusedAdam as NpuFusedAdam
    from ingot.optim import NpuFusedAdamP as NpuFusedAdamP
    from ingot.optim import NpuFusedAdamW as NpuFusedAdamW
    from ingot.optim import NpuFusedBertAdam as NpuFusedBertAdam
    from ingot.optim import NpuFusedLamb as NpuFusedLamb
    from ingot.optim import NpuFusedRMSprop as NpuFusedRMSprop
    from ingot.optim import NpuFusedRMSpropTF as NpuFusedRMSpropTF
    from ingot.optim import NpuFusedSGD as NpuFusedSGD
    from ingot.optim import RMSprop as RMSprop
    from ingot.optim import RMSpropTF as RMSpropTF

__version__ = "0.1.0"

_FUNCTIONS = {
    "create_optimizer": "ingot.factory",
    "list_optimizers": "ingot.factory",
    "param_groups": "ingot.groups",
}
# What the documentation calls by its full name after `import ingot` alone.
_MODULES = ("metrics", "optim", "optimizer")


def __getattr__(name: str) -> Any:
    # Lazy, so that torch's backend autoloading can import ingot.npusim while torch itself is being imported.
    # For the same reason a name that is not a class's is never looked for in ingot.optim.
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _MODULES:
        return import_module(f"ingot.{name}")
    if name == "__all__":
        # Without the short names: `from ingot import *` must not take the place of torch's SGD or AdamW.
        return [*import_module("ingot.optim").__all__, *_FUNCTIONS]
    if name[:1].isupper() and name in (optim := import_module("ingot.optim")).CLASSES:
        return optim.CLASSES[name]
    message = f"module 'ingot' has no attribute {name!r}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    # What this file imports for itself, and the submodules that others have loaded, are not for users.
    special = {name for name in globals() if name.startswith("__")}
    public = {*_FUNCTIONS, "metrics", "optim", *import_module("ingot.optim").CLASSES}
    return sorted(special | public)
