"""Reading and writing optimizer states in the form torch.optim and torch_npu.optim share."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.sharding.dtensor import check as check_placement
from ingot.storage.precision import MASTER

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

# How torch.optim runs a step, not what it computes: dropped when its checkpoints are loaded.
TORCH_ONLY = ("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay")


def with_tensor_steps(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Step counts as the 0-dim float32 tensors that torch.optim expects; here they are kept as integers."""
    state = {
        key: {
            **slots,
            "step": torch.tensor(float(slots["step"]), dtype=torch.float32, device="cpu"),
        }
        if "step" in slots
        else slots
        for key, slots in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def load(optimizer: FusedOptimizer, state_dict: Mapping[str, Any]) -> None:
    """Check everything, then replace the state and the options of the groups."""
    state_dict = dict(state_dict)
    for pre_hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = pre_hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    groups = loaded_groups(optimizer, state_dict)
    params = optimizer.all_params()
    keys = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    state: defaultdict[Any, Any] = defaultdict(dict)
    by_key = dict(zip(keys, params, strict=True))
    for key, slots in state_dict["state"].items():
        if key in by_key:
            param = by_key[key]
            state[param] = loaded_slots(optimizer, f"parameter {key}", param, slots)
        else:
            state[key] = slots
    optimizer.__setstate__({"state": state, "param_groups": groups})
    for post_hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        post_hook(optimizer)


def loaded_groups(optimizer: FusedOptimizer, state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The param groups with the saved options."""
    name = type(optimizer).__name__
    lacks = [key for key in ("state", "param_groups") if key not in state_dict]
    if lacks:
        raise ValueError(f"{name}: not the state of an optimizer: it lacks {', '.join(lacks)}")
    saved = state_dict["param_groups"]
    if len(saved) != len(optimizer.param_groups):
        raise ValueError(
            f"{name}: the state has {len(saved)} parameter groups, the optimizer has "
            f"{len(optimizer.param_groups)}"
        )
    groups = []
    for number, (group, new) in enumerate(zip(optimizer.param_groups, saved, strict=True)):
        if len(group["params"]) != len(new["params"]):
            raise ValueError(
                f"{name}: group {number} of the state has {len(new['params'])} parameters, the "
                f"optimizer's has {len(group['params'])}"
            )
        groups.append(loaded_group(optimizer, number, group, new))
    return groups


def loaded_group(
    optimizer: FusedOptimizer, number: int, group: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, Any]:
    """One group: options of a foreign optimizer are refused, missing ones keep their value."""
    name = type(optimizer).__name__
    options = {key: value for key, value in new.items() if key != "params"}
    lacks = sorted(documented(type(optimizer)) - options.keys() - optimizer.unsaved)
    foreign = sorted(foreign_options(type(optimizer)) & options.keys())
    if lacks or foreign:
        raise ValueError(
            f"{name}: group {number} of the state is of another optimizer: it "
            + (f"lacks {', '.join(lacks)}" if lacks else f"has {', '.join(foreign)}")
        )
    ours = group.get("decoupled_weight_decay")
    decoupled = options.get("decoupled_weight_decay", ours)
    if decoupled != ours and options.get("weight_decay"):
        home = "AdamW" if decoupled else "Adam"
        raise ValueError(
            f"{name}: group {number} of the state is of {home}, whose weight decay is "
            f"{'' if decoupled else 'not '}decoupled; NpuFused{home} takes it"
        )
    options = {key: deepcopy(value) for key, value in options.items() if key not in TORCH_ONLY}
    kept = {key: value for key, value in group.items() if key not in options}
    result = {**kept, **options, "params": group["params"]}
    optimizer.check(result)
    return result


def documented(kind: type[FusedOptimizer]) -> set[str]:
    """The options that every state of this optimizer has: its positional arguments."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    positional = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    return positional & kind.rules.keys()


def foreign_options(kind: type[FusedOptimizer]) -> set[str]:
    """Options of other optimizers that this one does not have."""
    from ingot import optim

    every = {option for name in optim.__all__ for option in getattr(optim, name).rules}
    return every - kind.rules.keys() - {"max_grad_norm"}


def loaded_slots(
    optimizer: FusedOptimizer, where: str, param: Tensor, slots: Mapping[str, Any]
) -> dict[str, Any]:
    """The state of one parameter, copied to its device and to the types this optimizer keeps."""
    name = type(optimizer).__name__
    known = {"step", MASTER, *optimizer.spec.states}
    unknown = sorted(set(slots) - known)
    if unknown:
        raise ValueError(
            f"{name}: the state of {where} has {', '.join(unknown)}, which is of another optimizer; "
            f"known are {', '.join(sorted(known))}"
        )
    needed = ["step"] if optimizer.spec.counted else []
    needed += [key for key, state in optimizer.spec.states.items() if state.flag is None]
    missing = [key for key in needed if key not in slots]
    if slots and missing:
        raise ValueError(f"{name}: the state of {where} lacks {', '.join(missing)}")
    result: dict[str, Any] = {}
    counted = optimizer.spec.counted or optimizer.precision.stochastic(param.dtype)
    for key, value in slots.items():
        if key == "step":
            result.update({key: loaded_step(f"{name}: {where}", value)} if counted else {})
        elif value is not None:
            result[key] = loaded_tensor(optimizer, f"{name}: {where}, {key}", param, key, value)
    if MASTER in result and not optimizer.precision.master(param.dtype):
        del result[MASTER]  # the parameter itself is what such an optimizer goes on from
    return result


def loaded_step(where: str, value: Any) -> int:
    """A step count: a whole number, or a tensor of one."""
    try:
        step = int(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        step = -1
    if step < 0:
        raise ValueError(f"{where}: step must be a whole number >= 0, the state has {value!r}")
    return step


def loaded_tensor(
    optimizer: FusedOptimizer, where: str, param: Tensor, key: str, value: Any
) -> Tensor:
    """One state tensor."""
    if not isinstance(value, Tensor) or value.shape != param.shape:
        was = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{where}: the parameter has shape {tuple(param.shape)}, its state is {was}"
        )
    dtype = torch.float32 if key == MASTER else optimizer.precision.stored(param.dtype)
    try:
        check_placement(where, param, value)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    loaded = torch.empty_like(param, dtype=dtype, memory_format=torch.preserve_format)
    return loaded.copy_(value.detach())
