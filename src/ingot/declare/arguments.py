"""The options that every optimizer has, and what is refused before torch looks at arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import required

from ingot.storage.precision import RULES

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Common(TypedDict, total=False):
        """The keyword-only options of every optimizer, see :class:`ingot.optimizer.FusedOptimizer`."""

        maximize: bool
        max_grad_norm: float | None
        backend: str | None
        state_dtype: torch.dtype | str | None
        master_weights: bool
        rounding: str
        rounding_seed: int
        offload: str | None


_ALWAYS_FUSED = "every step is fused: leave it out"
# What scripts written for torch.optim hand over.
_REMEDIES = {
    "fused": _ALWAYS_FUSED,
    "foreach": _ALWAYS_FUSED,
    "capturable": "a step cannot be captured in a graph of the device: leave it out",
    "differentiable": "a step cannot be differentiated: leave it out",
    "decoupled_weight_decay": "the class decides that: NpuFusedAdamW decouples it",
}


def refuse_unknown(kind: type, unknown: Iterable[str]) -> None:
    """Raise TypeError for the first of some options that a class does not have."""
    for option in unknown:
        known = [name for each in kind.__mro__ for name in _arguments(each)]
        similar = difflib.get_close_matches(option, known, n=1)
        if option in _REMEDIES:
            remedy = _REMEDIES[option]
        elif similar:
            remedy = f"did you mean {similar[0]!r}?"
        else:
            remedy = f"its options are {', '.join(dict.fromkeys(known))}"
        raise TypeError(f"{kind.__name__} has no option {option!r}; {remedy}")


def _arguments(kind: type) -> list[str]:
    """The options in the signature of a constructor of ours, or of a subclass."""
    if not issubclass(kind, Optimizer) or kind is Optimizer or "__init__" not in vars(kind):
        return []
    parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    wanted = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.kind in wanted]
    return [name for name in names if name not in ("self", "params", "defaults")]


def refuse_no_params(owner: str, params: Any) -> None:
    """Raise TypeError for what cannot be the parameters of an optimizer; torch looks at what is inside."""
    if isinstance(params, nn.Module):
        raise TypeError(
            f"{owner}: params is a model ({type(params).__name__}); give its parameters: "
            "model.parameters()"
        )
    if isinstance(params, Tensor):
        return  # a group may be one tensor; torch refuses it elsewhere
    if isinstance(params, Mapping):
        raise TypeError(
            f"{owner}: params is a dictionary; put a parameter group into a list, and of a model give "
            "model.parameters()"
        )
    if isinstance(params, (str, bytes)) or not isinstance(params, Iterable):
        raise TypeError(
            f"{owner}: params must be an iterable of tensors, of (name, tensor) pairs or of parameter "
            f"groups, not {params!r}"
        )


def refuse_lacking(owner: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError for options of a group that have no default and were not given."""
    lacking = [option for option, value in group.items() if value is required]
    if lacking:
        raise ValueError(f"{owner}: {', '.join(lacking)} must be given")


def refuse_whole(owner: str, where: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError for options in a group that only the whole optimizer can have."""
    whole = sorted({"backend", *RULES} & group.keys())
    if whole:
        raise ValueError(
            f"{owner}: {', '.join(whole)} must be given for the whole optimizer, not for one of its "
            f"groups ({where} has it)"
        )


def refuse_wrong_names(owner: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError for ``param_names`` that do not name the parameters of a group one by one."""
    names, params = group.get("param_names"), group.get("params")
    if names is None or not isinstance(params, list):
        return
    good = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if not good or len(names) != len(params):
        raise ValueError(
            f"{owner}: param_names must be a list of {len(params)} strings, one for each parameter of "
            f"the group, not {names!r}"
        )
