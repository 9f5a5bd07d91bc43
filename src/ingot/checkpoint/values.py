"""The single values of a saved state: state tensors, and what a user has put beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.sharding import dtensor
from ingot.storage import blockwise8
from ingot.storage.blockwise8 import SCALE
from ingot.storage.codes import plain
from ingot.storage.counts import shown
from ingot.storage.floats import FloatFormat

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer


def loaded_state(
    optimizer: FusedOptimizer, where: str, param: Tensor, name: str, slots: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The entries of one state, in the format this optimizer keeps, from whatever format it was saved in."""
    value, declared = slots[name], optimizer.spec.states[name]
    form: Any = optimizer.precision.format(param, declared)
    home = optimizer.precision.home(param)
    # torch.distributed.checkpoint, asked for a flattened state, makes {} of an entry that was not saved.
    if name + SCALE in slots and slots[name + SCALE] != {}:
        saved = blockwise8.SIGNED if declared.signed else blockwise8.UNSIGNED
        tensors = loaded_codes(where, param, saved, [value, slots[name + SCALE]], home)
        if form is saved:
            return {name + part: each for part, each in zip(form.parts, tensors, strict=True)}
        value = saved.load(tensors, torch.float32)
    if isinstance(form, FloatFormat):
        return {name: loaded_tensor(where, param, form.dtype, value, home)}
    wide = loaded_tensor(where, param, torch.float32, value, home)
    return {name + part: each for part, each in zip(form.parts, form.encoded(wide), strict=True)}


def loaded_codes(
    where: str,
    param: Tensor,
    form: blockwise8.Blockwise8,
    tensors: Sequence[Any],
    home: torch.device,
) -> list[Tensor]:
    """A copy of 8-bit codes and their scales on the device they are kept on."""
    problem = form.problem(param, tensors)
    if problem is not None:
        raise ValueError(
            f"{where}: the parameter has shape {tuple(param.shape)}, its state is {problem}"
        )
    if any(dtensor.is_dtensor(each) for each in (param, *tensors)):
        raise ValueError(
            f"{where}: 8-bit codes of a tensor in one piece do not fit one that processes share; save them "
            "with optimizer.state_dict(dtype=torch.float32)"
        )
    for value in tensors:
        refuse_kind(where, param, value)
    copies = [plain(each).detach().to(home, copy=True).contiguous() for each in tensors]
    if not (copies[1].isfinite() & (copies[1] >= 0)).all():
        raise ValueError(f"{where}: the scale of a block is negative, infinite or NaN")
    return copies


def loaded_tensor(
    where: str, param: Tensor, dtype: torch.dtype, value: Any, home: torch.device
) -> Tensor:
    """One state tensor, copied to the device and to the type this optimizer keeps it in."""
    if not isinstance(value, Tensor) or value.shape != param.shape:
        was = tuple(value.shape) if isinstance(value, Tensor) else shown(value)
        raise ValueError(
            f"{where}: the parameter has shape {tuple(param.shape)}, its state is {was}"
        )
    floating = value.is_complex() if param.is_complex() else value.is_floating_point()
    refuse_kind(where, param, value, allowed=floating)
    try:
        dtensor.check(where, param, value)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    place = None if home == param.device else home
    preserve = torch.preserve_format
    loaded = torch.empty_like(param, dtype=dtype, device=place, memory_format=preserve)
    return loaded.copy_(value.detach())


def refuse_kind(where: str, param: Tensor, value: Tensor, allowed: bool = True) -> None:
    """Raise ValueError for a tensor of a type that is not ``allowed``, a sparse one, or one without data."""
    without_data = value.is_meta and not param.is_meta
    if not allowed or value.layout is not torch.strided or without_data:
        raise ValueError(
            f"{where}: the parameter is a {kind_of(param)} tensor, its state a {kind_of(value)} one"
        )


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
