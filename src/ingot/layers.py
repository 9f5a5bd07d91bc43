"""The layers of a model, from the input up, for learning rates that fall towards it."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable

from torch.nn import Module, ModuleList, Sequential

# A container that holds this share of the model should not become part of one layer unnoticed.
LARGE = 0.1


def found_depths(model: Module) -> Callable[[str], int]:
    """The layer of a parameter by its name; what lies before all layers is 0, and what comes after them one more."""
    stack = _stack(model)
    _warn_of_others(model, stack)
    levels = stack[0].count(".") + 1
    layers = set(stack)
    numbers: dict[str, int] = {}  # of the layers that have parameters of their own, in their order
    depths: dict[str, int] = {}
    for name, _ in model.named_parameters():
        layer = ".".join(name.split(".")[:levels])
        if layer in layers:
            depths[name] = numbers.setdefault(layer, len(numbers) + 1)
        else:
            depths[name] = 0 if not numbers else -1
    above = len(numbers) + 1
    return lambda name: depths[name] if depths[name] >= 0 else above


def _stack(model: Module) -> list[str]:
    """The names of the layers: of the entries of the outermost stack that holds half of the parameters."""
    half = _size(model) / 2
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        inside = {child: each for child, each in module.named_children() if _size(each) > 0}
        stacked = isinstance(module, (ModuleList, Sequential)) and len(inside) > 1
        if stacked and _size(module) >= half:
            return [prefix + child for child in inside]
        for stages in _numbered(inside):
            if sum(_size(inside[child]) for child in stages) >= half:
                return [prefix + child for child in stages]
    raise ValueError(
        f"param_groups: cannot tell the layers of {type(model).__name__}: no ModuleList or Sequential of two or "
        "more entries holds half of its parameters. Pass layers=, a function from a parameter's name to the number "
        "of its layer, counted from 0 at the input"
    )


def _numbered(children: dict[str, Module]) -> list[list[str]]:
    """Containers side by side whose names differ in a number only: the stages of a convolutional network."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, module in children.items():
        if isinstance(module, (ModuleList, Sequential)) and re.search(r"\d", name):
            found[re.sub(r"\d+", "#", name)].append(name)
    return [names for names in found.values() if len(names) > 1]


def _warn_of_others(model: Module, stack: list[str]) -> None:
    """Name the large containers outside of the stack: their entries are one layer, all of them."""
    whole, outside = _size(model), list[str]()
    taken = [f"{name}." for name in stack]
    for name, module in model.named_modules():
        path = f"{name}."
        known = any(path.startswith(other) or other.startswith(path) for other in taken)
        if known or not name or not isinstance(module, (ModuleList, Sequential)):
            continue
        entries = [child for child in module.children() if _size(child) > 0]
        if len(entries) > 1 and _size(module) >= LARGE * whole:
            outside.append(f"{name} ({_size(module) / whole:.0%} of the parameters)")
            taken.append(path)
    if outside:
        warnings.warn(
            f"param_groups: the layers of {type(model).__name__} are {stack[0]} to {stack[-1]}; as one layer before or "
            f"after them count {', '.join(outside)}. If that is wrong, pass layers=",
            stacklevel=5,
        )


def _size(module: Module) -> int:
    """How many numbers the parameters of a module hold."""
    return sum(param.numel() for param in module.parameters())
