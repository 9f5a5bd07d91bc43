"""What ``state_dict()`` returns: plain dictionaries, parameters as numbers, step counts as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.checkpoint.recognize import DECOUPLED

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

_LARGEST_EXACT_FLOAT32 = 2**24


def packed(optimizer: FusedOptimizer) -> dict[str, Any]:
    """The state as torch.optim lays it out.

    Steps are integers here and tensors in torch.optim, so that hooks, which were written for torch.optim, must find
    tensors. That is why torch's own ``state_dict`` is not called: it runs the hooks before anything can be changed.
    """
    for pre_hook in optimizer._optimizer_state_dict_pre_hooks.values():
        pre_hook(optimizer)
    numbers: dict[int, int] = {}
    for number, param in enumerate(optimizer.all_params()):
        numbers.setdefault(id(param), number)
    state_dict: dict[str, Any] = {
        "state": {
            numbers[id(key)] if isinstance(key, Tensor) else key: (
                with_tensor_step(slots) if isinstance(key, Tensor) else slots
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


def with_tensor_step(slots: Any) -> Any:
    """The state of one parameter, its step count as the 0-dim tensor that torch.optim expects.

    float32 is what torch.optim keeps, but from 2**24 on it lacks every second number and would stand still there.
    torch.optim goes on with a float64 count, too.
    """
    if not isinstance(slots, dict) or type(slots.get("step")) is not int:
        return slots
    step = slots["step"]
    dtype = torch.float32 if step < _LARGEST_EXACT_FLOAT32 else torch.float64
    return {**slots, "step": torch.tensor(float(step), dtype=dtype, device="cpu")}
