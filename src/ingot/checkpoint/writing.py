"""What ``state_dict()`` returns: plain dictionaries, parameters as numbers, step counts as tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.checkpoint.recognize import DECOUPLED
from ingot.sharding import dtensor
from ingot.storage.blockwise8 import SCALE, SIGNED, UNSIGNED
from ingot.storage.codes import Codes
from ingot.storage.rounding import HALVES

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

KEPT = "kept"
_LARGEST_EXACT_FLOAT32 = 2**24


def packed(optimizer: FusedOptimizer, dtype: torch.dtype | str | None) -> dict[str, Any]:
    """The state as torch.optim lays it out, in the formats it is kept in or all in float32.

    Steps are integers here and tensors in torch.optim, so that hooks, which were written for torch.optim, must find
    tensors. That is why torch's own ``state_dict`` is not called: it runs the hooks before anything can be changed.
    """
    if dtype not in (None, KEPT, torch.float32):
        raise ValueError(
            f"{type(optimizer).__name__}: dtype must be None, {KEPT!r} or torch.float32, got {dtype!r}"
        )
    for pre_hook in optimizer._optimizer_state_dict_pre_hooks.values():
        pre_hook(optimizer)
    numbers: dict[int, int] = {}
    for number, param in enumerate(optimizer.all_params()):
        numbers.setdefault(id(param), number)
    state_dict: dict[str, Any] = {
        "state": {
            numbers[id(key)] if isinstance(key, Tensor) else key: (
                packed_slots(optimizer, key, slots, dtype) if isinstance(key, Tensor) else slots
            )
            for key, slots in optimizer.state.items()
        },
        "param_groups": [
            packed_group(optimizer, group, numbers) for group in optimizer.param_groups
        ],
    }
    for post_hook in optimizer._optimizer_state_dict_post_hooks.values():
        result = post_hook(optimizer, state_dict)
        state_dict = state_dict if result is None else result
    return state_dict


def packed_group(
    optimizer: FusedOptimizer, group: dict[str, Any], numbers: dict[int, int]
) -> dict[str, Any]:
    """The options of one group and the numbers of its parameters."""
    options = {key: value for key, value in group.items() if key != "params"}
    # Adam and AdamW have the same options and states. Without this mark, which torch.optim has as well, one
    # could load the other's state, and go on with another meaning of weight_decay.
    if optimizer.decoupled_weight_decay is not None:
        options[DECOUPLED] = optimizer.decoupled_weight_decay
    return {**options, "params": [numbers[id(param)] for param in group["params"]]}


def packed_slots(
    optimizer: FusedOptimizer, param: Tensor, slots: Any, dtype: torch.dtype | str | None
) -> Any:
    """The state of one parameter, its step count as the 0-dim tensor that torch.optim expects."""
    if not isinstance(slots, dict):
        return slots
    result = dict(slots)
    if type(result.get("step")) is int:
        result["step"] = tensor_step(result["step"])
    for name, declared in optimizer.spec.states.items():
        form = SIGNED if declared.signed else UNSIGNED
        value, scale = (result.get(name + part) for part in form.parts)
        if not isinstance(value, Tensor):
            continue
        if value.dtype is form.dtype and isinstance(scale, Tensor):
            if keeps_codes(param, dtype):
                result[name] = value.as_subclass(Codes)
            else:
                result[name] = form.decoded([value, scale])
                del result[name + SCALE]
        elif value.dtype in HALVES and dtype is torch.float32:
            result[name] = value.to(torch.float32)
    return result


def keeps_codes(param: Tensor, dtype: torch.dtype | str | None) -> bool:
    """Whether 8-bit states are saved as codes.

    Codes belong to the blocks of one local tensor. What torch.distributed.checkpoint saves may be loaded by any number
    of processes, each with other local tensors; so states are saved as numbers wherever there are several processes.
    """
    if dtype is torch.float32 or dtensor.is_dtensor(param):
        return False
    dist = sys.modules.get("torch.distributed")
    return dtype == KEPT or dist is None or not (dist.is_available() and dist.is_initialized())


def tensor_step(step: int) -> Tensor:
    """A step count as torch.optim keeps it: float32, which from 2**24 on lacks every second number.

    It would stand still there. torch.optim goes on with a float64 count, too.
    """
    dtype = torch.float32 if step < _LARGEST_EXACT_FLOAT32 else torch.float64
    return torch.tensor(float(step), dtype=dtype, device="cpu")
