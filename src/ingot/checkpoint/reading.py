"""What ``load_state_dict()`` takes: everything is checked, then the state and the options are replaced."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.checkpoint.recognize import TORCH_ONLY, foreign_states, refuse_group, seems
from ingot.checkpoint.values import kept, loaded_state, loaded_tensor
from ingot.declare.arguments import refuse_whole
from ingot.storage.blockwise8 import SCALE
from ingot.storage.counts import shown, step_count
from ingot.storage.master import NAME as MASTER

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer


def load(optimizer: FusedOptimizer, state_dict: Mapping[str, Any]) -> None:
    """Check everything, then replace the state and the options of the groups."""
    name = type(optimizer).__name__
    refuse_other_things(name, state_dict)
    state_dict = dict(state_dict)
    for pre_hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        result = pre_hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    refuse_other_layouts(name, state_dict)
    # States outlive the context they are loaded in: they must be ordinary tensors, which later steps may change.
    with torch.inference_mode(False), torch.no_grad():
        groups = loaded_groups(optimizer, state_dict)
        state = loaded_states(optimizer, state_dict, groups)
    optimizer.__setstate__({"state": state, "param_groups": groups})
    for post_hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        post_hook(optimizer)


def refuse_other_things(name: str, state_dict: Any) -> None:
    """Raise TypeError for what is no dictionary, such as the name of a file."""
    if isinstance(state_dict, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{name}: load_state_dict takes a dictionary, not the name of a file; read it first: "
            f"optimizer.load_state_dict(torch.load({os.fspath(state_dict)!r}))"
        )
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"{name}: load_state_dict takes the dictionary that state_dict() returns, not a "
            f"{type(state_dict).__name__}"
        )


def refuse_other_layouts(name: str, state_dict: Any) -> None:
    """Raise ValueError for a dictionary that no optimizer has saved."""
    refuse_other_things(name, state_dict)
    lacks = [key for key in ("state", "param_groups") if key not in state_dict]
    if lacks:
        inside = [
            key
            for key, value in state_dict.items()
            if isinstance(value, Mapping) and {"state", "param_groups"} <= value.keys()
        ]
        hint = "".join(f"; the one under {key!r} may be meant" for key in inside[:1])
        raise ValueError(
            f"{name}: not the state of an optimizer: it lacks {', '.join(lacks)}{hint}"
        )
    if not isinstance(state_dict["state"], Mapping):
        raise ValueError(f"{name}: 'state' must be a dictionary, not {state_dict['state']!r}")
    groups = state_dict["param_groups"]
    if not isinstance(groups, (list, tuple)):
        raise ValueError(f"{name}: 'param_groups' must be a list, not {groups!r}")
    for number, group in enumerate(groups):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise ValueError(
                f"{name}: group {number} of the state must be a dictionary with a list 'params', "
                f"not {group!r}"
            )


def loaded_groups(optimizer: FusedOptimizer, state_dict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The param groups with the saved options."""
    name = type(optimizer).__name__
    saved = state_dict["param_groups"]
    if len(saved) != len(optimizer.param_groups):
        raise ValueError(
            f"{name}: the state has {len(saved)} parameter groups, the optimizer has "
            f"{len(optimizer.param_groups)}; make it with groups like those that were saved (of a model, "
            "ingot.create_optimizer makes two, with and without weight decay; of model.parameters() one)"
        )
    # Which states there are helps to tell optimizers with the same options from one another.
    keys = set(chain.from_iterable(group["params"] for group in saved))
    slots = (state_dict["state"].get(key) for key in keys)
    states = {str(state) for each in slots if isinstance(each, Mapping) for state in each}
    groups = []
    for number, (group, new) in enumerate(zip(optimizer.param_groups, saved, strict=True)):
        refuse_group(type(optimizer), number, new, states)
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
    """One group: the saved options; those it lacks keep their value."""
    where = f"group {number} of the state"
    dropped = ("params", *TORCH_ONLY)
    options = {key: deepcopy(value) for key, value in new.items() if key not in dropped}
    refuse_whole(type(optimizer).__name__, where, options)
    result = optimizer.group_of(group)
    result.update(options)
    if any(result[key] is not value and result[key] != value for key, value in options.items()):
        raise ValueError(
            f"{type(optimizer).__name__}: {where} has two spellings of an option that differ: "
            f"{options}"
        )
    optimizer.check(result)
    return result


def loaded_states(
    optimizer: FusedOptimizer, state_dict: Mapping[str, Any], groups: list[dict[str, Any]]
) -> defaultdict[Any, Any]:
    """The states of all parameters; what is not under the number of a parameter stays as it is."""
    by_key: dict[Any, tuple[Tensor, dict[str, Any]]] = {}
    for group, saved in zip(groups, state_dict["param_groups"], strict=True):
        for key, param in zip(saved["params"], group["params"], strict=True):
            by_key[key] = param, group
    state: defaultdict[Any, Any] = defaultdict(dict)
    params = [param for param, _ in by_key.values()]
    counted = optimizer.spec.counted or optimizer.precision.counts(params)
    for key, slots in state_dict["state"].items():
        if key not in by_key:
            state[key] = slots
            continue
        param, group = by_key[key]
        where = f"the state of parameter {key}"
        if not isinstance(slots, Mapping):
            raise ValueError(
                f"{type(optimizer).__name__}: {where} must be a dictionary, not {shown(slots)}"
            )
        state[param] = loaded_slots(optimizer, where, param, group, slots, counted)
    return state


def loaded_slots(
    optimizer: FusedOptimizer,
    where: str,
    param: Tensor,
    group: Mapping[str, Any],
    slots: Mapping[str, Any],
    counted: bool,
) -> dict[str, Any]:
    """The state of one parameter, with its step count if asked, as this optimizer keeps it and where."""
    name, spec = type(optimizer).__name__, optimizer.spec
    refuse_slots(optimizer, f"{name}: {where}", group, slots)
    result: dict[str, Any] = {}
    for key, value in slots.items():
        if key == "step":
            step = step_count(f"{name}: {where}", value)
            result.update({key: step} if counted else {})
        elif key == MASTER:
            home = optimizer.precision.home(param)
            place = f"{name}: {where}, {key}"
            result[key] = loaded_tensor(place, param, torch.float32, value, home)
        elif key in spec.states and value is not None:
            result.update(loaded_state(optimizer, f"{name}: {where}, {key}", param, key, slots))
        elif key not in spec.states and key.removesuffix(SCALE) not in spec.states:
            result[key] = kept(param, value)
    if MASTER in result and not optimizer.precision.master(param.dtype):
        del result[MASTER]  # the parameter itself is what such an optimizer goes on from
    return result


def refuse_slots(
    optimizer: FusedOptimizer, where: str, group: Mapping[str, Any], slots: Mapping[str, Any]
) -> None:
    """Raise ValueError for states of another optimizer, and where some of this one's are missing."""
    spec = optimizer.spec
    flags = {key: state.flag for key, state in spec.states.items()}
    always = [key for key, flag in flags.items() if flag is None]
    always += ["step"] if spec.counted else []
    # A parameter that never had a gradient has no state yet, but may have something of the user's.
    begun = any(key in slots for key in ("step", MASTER, *flags))
    missing = [key for key in always if key not in slots]
    if begun and missing:
        # Beside the states that are needed, a name that another optimizer uses, such as "sum", is the user's own.
        foreign = foreign_states(type(optimizer), slots)
        if not foreign:
            raise ValueError(f"{where} lacks {', '.join(missing)}")
        common = set.intersection(*map(set, foreign.values()))
        raise ValueError(
            f"{where} has {', '.join(sorted(foreign))}, of another optimizer{seems(sorted(common))}"
        )
    # torch.optim.SGD writes None for a buffer that it does not have yet. Otherwise only a state may be None that
    # an option switches off.
    used = {key for key, flag in flags.items() if flag is None or group.get(flag)}
    for key in ("step", MASTER, *(used if spec.counted else ())):
        if key in slots and slots[key] is None:
            raise ValueError(f"{where}: {key} is None; delete the whole entry to start it afresh")
