"""Optimizers by name: what a configuration file or a command line asks for."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch.nn import Module
from torch.optim.optimizer import required

from ingot import optim
from ingot.declare import arguments
from ingot.groups import param_groups

if TYPE_CHECKING:
    from ingot.declare.options import Number
    from ingot.optimizer import FusedOptimizer, Params


def list_optimizers(pattern: str = "*") -> list[str]:
    """The names of the optimizers that match a pattern, in alphabetical order.

    Args:
        pattern: a pattern with the wildcards ``*``, ``?`` and ``[...]`` (default "*": all). Case does not matter.

    Example:
        >>> import ingot
        >>> ingot.list_optimizers("adam?")
        ['adamp', 'adamw']
    """
    if not isinstance(pattern, str):
        raise TypeError(f"list_optimizers: pattern must be a string, got {pattern!r}")
    return sorted(name for name in _by_name() if fnmatchcase(name, pattern.lower()))


def create_optimizer(
    model_or_params: Module | Params,
    name: str,
    *,
    lr: Number | None = None,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
    **options: Any,
) -> FusedOptimizer:
    """An optimizer by its name, for a model or for parameters.

    A model gets the groups of :func:`ingot.param_groups`: biases and the parameters of norms do not decay, frozen
    parameters are left out. Parameters (or groups of them) are taken as they are, as by the class itself.

    Args:
        model_or_params: a ``torch.nn.Module``; or parameters, named parameters, or parameter groups.
        name: one of :func:`ingot.list_optimizers`. Case, ``-``, ``_`` and a leading ``NpuFused`` do not matter.
        lr: learning rate (default None: the optimizer's own).
        weight_decay: weight decay (default None: the optimizer's own).
        layer_decay: only with a model: see :func:`ingot.param_groups`.
        **options: the other options of the optimizer.

    Raises:
        ValueError: for a name that is not known, and for values that an option cannot have.
        TypeError: for an option that the optimizer does not have.

    Example:
        >>> import torch, ingot
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = ingot.create_optimizer(model, "lamb", lr=1e-2, weight_decay=0.01)
        >>> [(group["name"], group["weight_decay"]) for group in optimizer.param_groups]
        [('decay', 0.01), ('no_decay', 0.0)]
    """
    kind = _named(name)
    arguments.refuse_unknown(kind, [each for each in ("params", "defaults") if each in options])
    known = _options(kind)
    given = {"lr": lr, "weight_decay": weight_decay}
    options |= {option: value for option, value in given.items() if value is not None}
    if isinstance(model_or_params, Module):
        params: Any = param_groups(
            model_or_params,
            weight_decay=options.get("weight_decay", known.get("weight_decay", 0.0)),
            layer_decay=layer_decay,
            lr=None if layer_decay is None else _rate(kind, options.get("lr", known["lr"])),
        )
    elif layer_decay is not None:
        raise ValueError(
            f"create_optimizer: layer_decay={layer_decay!r} needs a model, whose layers it can see; "
            f"got {type(model_or_params).__name__}. Pass the model, or groups made by ingot.param_groups"
        )
    else:
        params = model_or_params
    return kind(params, **options)


def _by_name() -> dict[str, type[FusedOptimizer]]:
    """The classes by their short names in small letters."""
    return {_plain(full): getattr(optim, full) for full in optim.__all__}


def _plain(name: str) -> str:
    """A name without what does not matter: 'NpuFusedBertAdam' and 'bert_adam' are 'bertadam'."""
    return name.lower().replace("-", "").replace("_", "").removeprefix("npufused")


def _named(name: str) -> type[FusedOptimizer]:
    """The class of that name."""
    if not isinstance(name, str):
        raise TypeError(f"create_optimizer: name must be a string such as 'adamw', got {name!r}")
    found = _by_name()
    if _plain(name) not in found:
        close = get_close_matches(_plain(name), list(found), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"create_optimizer: no optimizer named {name!r}.{hint} There are: {', '.join(sorted(found))}"
        )
    return found[_plain(name)]


def _options(kind: type[FusedOptimizer]) -> dict[str, Any]:
    """The options of an optimizer, those that all share included, with their defaults."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base):
            continue
        arguments = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for argument in arguments:
            if argument.kind is not argument.VAR_KEYWORD and argument.name not in found:
                found[argument.name] = argument.default
        if not any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
            break
    return {name: value for name, value in found.items() if name not in ("params", "defaults")}


def _rate(kind: type[FusedOptimizer], lr: Any) -> Any:
    """The learning rate that ``layer_decay`` starts from."""
    if lr is required:
        raise ValueError(f"{kind.__name__}: lr must be given")
    return lr
