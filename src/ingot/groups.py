"""Parameter groups of a model: no weight decay for biases and norms, smaller rates for lower layers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from ingot.declare.options import WEIGHT_DECAY, Rule, real
from ingot.layers import found_depths

LAYER_DECAY = Rule(
    "layer_decay value", lambda x: 0 < real(x) <= 1, "None or in the interval (0, 1]"
)
RATE = Rule("learning rate", lambda x: 0 <= real(x) < math.inf, "a finite number >= 0")


class Member(NamedTuple):
    """A parameter, and where it belongs."""

    name: str
    param: Tensor
    decays: bool
    depth: int  # 0 without layers


class ParamGroups(list[dict[str, Any]]):
    """Parameter groups as every torch optimizer takes them; ``repr`` shows them as a table.

    Attributes:
        frozen: the names of the parameters that were left out because they need no gradient.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], frozen: Iterable[str] = ()) -> None:
        super().__init__(groups)
        self.frozen = list(frozen)

    def __repr__(self) -> str:
        head = ("group", "tensors", "parameters", "weight_decay", "lr", "names")
        rows = [head, *map(_cells, self)]
        if all(row[4] == "" for row in rows[1:]):
            rows = [(*row[:4], *row[5:]) for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        lines = [f"ParamGroups: {len(self)} group{'s' * (len(self) != 1)}"]
        for first, *middle, last in rows:
            cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=True)]
            lines.append("  ".join(["", first.ljust(widths[0]), *cells, last]))
        if self.frozen:
            lines.append(f"  left out, frozen: {_some(self.frozen)}")
        return "\n".join(lines)


def param_groups(
    model: Module,
    weight_decay: float,
    layer_decay: float | None = None,
    *,
    lr: float | None = None,
    no_decay: Iterable[str] = (),
    layers: Callable[[str], int] | None = None,
    frozen: bool = False,
) -> ParamGroups:
    """Groups of a model's parameters for any torch optimizer.

    Weight decay 0 for parameters of fewer than two dimensions, for biases (a name that ends in or starts with
    ``bias``), for all parameters of norm modules, and for those that ``no_decay`` names. Each group has a ``name``
    and ``param_names`` (delete these where groups without names are added later, or split by
    ZeroRedundancyOptimizer). Shared parameters count once, under the first of their names.

    Args:
        model: the model.
        weight_decay: the weight decay of all other parameters.
        layer_decay: the rate of a layer is this times that of the layer above it (default None: one rate for all).
            The uppermost has the full ``lr``. Layers are the entries of the ``ModuleList`` or ``Sequential`` that
            holds at least half of the model, or such containers themselves where they are numbered and do so
            together, as ``layer1`` to ``layer4`` of a ResNet; what the model has before them is the lowest layer,
            what comes after them is the uppermost one. A warning names other large containers.
        lr: the full learning rate; needed with ``layer_decay``, as groups then have rates of their own.
        no_decay: patterns of the names of more parameters that should not decay, such as ``"*.pos_embed"``.
        layers: the layer of a parameter by its name, counted from 0 at the input, where the rule above does not fit.
        frozen: also take parameters that need no gradient now, because they will later (default False).

    Raises:
        TypeError: if ``model`` is not a module, ``no_decay`` not patterns, or ``layers`` not a function.
        ValueError: for a value that is not allowed; a pattern without a parameter; no parameter at all; with
            ``layer_decay``, a model whose layers cannot be told.

    Example:
        >>> import torch, ingot
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
        >>> ingot.param_groups(model, weight_decay=0.05)
        ParamGroups: 2 groups
          group     tensors  parameters  weight_decay  names
          decay           2          48          0.05  0.weight, 2.weight
          no_decay        4          26             0  0.bias, 1.weight, 1.bias, 2.bias
    """
    if not isinstance(model, Module):
        raise TypeError(
            f"param_groups: model must be a torch.nn.Module, got {type(model).__name__}; "
            "parameters alone do not say which of them belong to norms"
        )
    WEIGHT_DECAY.check("param_groups", "weight_decay", weight_decay)
    depth_of = _depths(model, layer_decay, lr, layers)
    patterns = _patterns(no_decay)
    taken = {
        name: param for name, param in model.named_parameters() if frozen or param.requires_grad
    }
    if not taken:
        raise ValueError("param_groups: the model has no parameter that needs a gradient")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in taken):
            raise ValueError(f"param_groups: no parameter matches no_decay pattern {pattern!r}")
    undecayed = _undecayed(model, taken) | {
        name for name in taken if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    members = [Member(n, p, n not in undecayed, depth_of(n)) for n, p in taken.items()]
    groups = _grouped(members, float(weight_decay), layer_decay, lr)
    return ParamGroups(groups, [name for name, _ in model.named_parameters() if name not in taken])


def _patterns(no_decay: Any) -> list[str]:
    """The patterns of ``no_decay``, which may be a single one."""
    if isinstance(no_decay, str):
        return [no_decay]
    patterns: list[Any] = list(no_decay) if isinstance(no_decay, Iterable) else [None]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            "param_groups: no_decay must be a pattern of names, or several patterns such as ['*.pos_embed'], "
            f"got {no_decay!r}"
        )
    return patterns


def _grouped(
    members: list[Member], weight_decay: float, layer_decay: float | None, lr: float | None
) -> Iterator[dict[str, Any]]:
    """One group for each layer and decay, from the lowest layer up."""
    together: dict[tuple[int, bool], list[Member]] = defaultdict(list)
    for member in members:
        together[member.depth, not member.decays].append(member)
    top = max(member.depth for member in members)
    for (depth, plain), group in sorted(together.items()):
        name = "no_decay" if plain else "decay"
        if layer_decay is not None:
            name = f"layer_{depth:0{len(str(top))}}_{name}"
        made: dict[str, Any] = {
            "params": [member.param for member in group],
            "param_names": [member.name for member in group],
            "name": name,
            "weight_decay": 0.0 if plain else weight_decay,
        }
        if lr is not None:
            made["lr"] = lr * (layer_decay or 1.0) ** (top - depth)
        yield made


def _undecayed(model: Module, taken: Mapping[str, Tensor]) -> set[str]:
    """The parameters that do not decay by what they are."""
    found = set()
    for name, param in taken.items():
        if is_lazy(param):
            raise ValueError(
                f"param_groups: {name} has no shape yet; run the model on a first batch before"
            )
        path, _, own = name.rpartition(".")
        if own == "_flat_param":
            raise ValueError(
                f"param_groups: {name} is many parameters in one (FSDP1); make the groups of the model "
                "before it is wrapped, or wrap it with use_orig_params=True or fully_shard"
            )
        norm = "norm" in type(model.get_submodule(path)).__name__.lower()
        if norm or param.ndim < 2 or own.endswith("bias") or own.startswith("bias"):
            found.add(name)
    return found


def _depths(
    model: Module, layer_decay: float | None, lr: float | None, layers: Callable[[str], int] | None
) -> Callable[[str], int]:
    """The layer of a parameter by its name; 0 for all without ``layer_decay``."""
    if lr is not None:
        RATE.check("param_groups", "lr", lr)
    if layer_decay is None:
        if layers is not None:
            raise ValueError("param_groups: layers has no meaning without layer_decay")
        return lambda name: 0
    LAYER_DECAY.check("param_groups", "layer_decay", layer_decay)
    if lr is None:
        raise ValueError(
            f"param_groups: layer_decay={layer_decay!r} needs lr, the learning rate of the uppermost layer"
        )
    if layers is None:
        return found_depths(model)
    if not callable(layers):
        raise TypeError(
            "param_groups: layers must be a function from a parameter's name to the number of its layer, "
            f"got {layers!r}"
        )
    return _checked(layers)


def _checked(layers: Callable[[str], int]) -> Callable[[str], int]:
    """The caller's layers; what is no layer is refused."""

    def depth(name: str) -> int:
        value = layers(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(
                f"param_groups: layers({name!r}) must be an integer >= 0, got {value!r}"
            )
        return value

    return depth


def _cells(group: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    size = sum(param.numel() for param in group["params"])
    rate = f"{group['lr']:.3g}" if "lr" in group else ""
    names = _some(group.get("param_names", []))
    tensors = str(len(group["params"]))
    return (group["name"], tensors, f"{size:,}", f"{group['weight_decay']:g}", rate, names)


def _some(names: list[str]) -> str:
    """The names, or the first three and the last."""
    if len(names) <= 5:
        return ", ".join(names)
    return f"{', '.join(names[:3])}, ... ({len(names) - 4} more), {names[-1]}"
