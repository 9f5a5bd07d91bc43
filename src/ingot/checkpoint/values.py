"""The single values of a saved state: step counts, state tensors, and what a user has put beside them."""

from __future__ import annotations

import math
import operator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.sharding.dtensor import check as check_placement
from ingot.storage.master import NAME as MASTER

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

_MOST_STEPS = 2**53  # float64, in which large counts are saved, has every whole number up to here


def loaded_step(where: str, value: Any) -> int:
    """A step count: a whole number, or a tensor of one."""
    number = value
    if isinstance(value, Tensor):
        usable = value.numel() == 1 and not (value.is_meta or value.is_complex())
        number = value.item() if usable else None
    if isinstance(number, float) and math.isfinite(number) and number.is_integer():
        number = int(number)
    try:
        step = -1 if isinstance(number, (bool, float)) else operator.index(number)
    except TypeError:
        step = -1
    if not 0 <= step <= _MOST_STEPS:
        raise ValueError(
            f"{where}: step must be a whole number from 0 to 2**53, the state has {shown(value)}"
        )
    return step


def shown(value: Any) -> str:
    """A value for a message; Python refuses to write out integers of many thousand digits."""
    if isinstance(value, int) and abs(value) > _MOST_STEPS:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def loaded_tensor(
    optimizer: FusedOptimizer, where: str, param: Tensor, key: str, value: Any
) -> Tensor:
    """One state tensor, copied to the device and to the type this optimizer keeps it in."""
    if not isinstance(value, Tensor) or value.shape != param.shape:
        was = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(
            f"{where}: the parameter has shape {tuple(param.shape)}, its state is {was}"
        )
    floating = value.is_complex() if param.is_complex() else value.is_floating_point()
    if not floating or value.layout is not torch.strided or (value.is_meta and not param.is_meta):
        raise ValueError(
            f"{where}: the parameter is a {kind_of(param)} tensor, its state a {kind_of(value)} one"
        )
    dtype = torch.float32 if key == MASTER else optimizer.precision.wide(param.dtype)
    try:
        check_placement(where, param, value)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    home = optimizer.precision.home(param)
    place = None if home == param.device else home
    preserve = torch.preserve_format
    loaded = torch.empty_like(param, dtype=dtype, device=place, memory_format=preserve)
    return loaded.copy_(value.detach())


def kind_of(tensor: Tensor) -> str:
    """Type, layout and device of a tensor, for a message."""
    layout = "" if tensor.layout is torch.strided else f"{tensor.layout} "
    return f"{layout}{tensor.dtype} {tensor.device.type}"


def kept(param: Tensor, value: Any) -> Any:
    """A copy of what a user has put into the state of a parameter; tensors come to the parameter's device.

    torch.optim casts such tensors to the type of the parameter as well; here they stay what they are.
    """
    if isinstance(value, Tensor):
        return value.detach().to(param.device, copy=True)
    if type(value) is dict:
        return {key: kept(param, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(kept(param, each) for each in value)
    return deepcopy(value)
