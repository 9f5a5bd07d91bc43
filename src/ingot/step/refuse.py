"""Where the parameters stand in their optimizer, and what a step refuses to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ingot.declare.spec import Variant
from ingot.sharding import dtensor as shards
from ingot.step.overlap import refuse_overlap
from ingot.storage.precision import MASTER, SUPPORTED, Precision

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

Slots = dict[str, Any]  # the state of one parameter


class Place(NamedTuple):
    """Where a parameter stands in its optimizer."""

    owner: str
    group: int
    position: int
    ordinal: int
    name: str | None

    def __str__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"{self.owner}: parameter {self.position}{name} of group {self.group}"


def places(optimizer: FusedOptimizer) -> Iterator[tuple[Place, Mapping[str, Any], Tensor]]:
    """All parameters that have a gradient, in order."""
    first = 0
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for index, param in enumerate(group["params"]):
            if param.grad is not None:
                name = names[index] if names else None
                place = Place(type(optimizer).__name__, number, index, first + index, name)
                yield place, group, param
        first += len(group["params"])


def check(place: Place, param: Tensor, grad: Tensor) -> None:
    """Refuse what no backend can update."""
    if grad.layout is not torch.strided:
        raise RuntimeError(f"{place}: {place.owner} does not support sparse gradients")
    if param.dtype not in SUPPORTED or grad.dtype not in SUPPORTED:
        raise RuntimeError(
            f"{place}: parameter of {param.dtype} with a gradient of {grad.dtype}; "
            f"supported are {', '.join(map(str, SUPPORTED))}"
        )
    if param.dtype.is_complex != grad.dtype.is_complex:
        raise RuntimeError(f"{place}: a {param.dtype} parameter with a {grad.dtype} gradient")
    if param.is_conj():
        raise RuntimeError(f"{place}: a lazily conjugated view; call resolve_conj() first")
    if param.is_meta or grad.is_meta:
        raise RuntimeError(f"{place}: a meta tensor has no values to update")
    if param.shape != grad.shape:
        raise RuntimeError(
            f"{place}: shape {tuple(param.shape)}, but its gradient has shape {tuple(grad.shape)}"
        )
    if param.device != grad.device:
        raise RuntimeError(
            f"{place}: on {param.device}, but its gradient is on {grad.device}; "
            "the parameter was moved after backward()"
        )
    refuse_overlap(place, param)
    shards.check(place, param, grad)


def resolved(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy that is no lazily conjugated or negated view: backends see only the memory."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.resolve_conj().resolve_neg() if lazy else tensor


def prepared_state(
    place: Place, name: str, param: Tensor, value: Any, dtype: torch.dtype, start: float
) -> Tensor:
    """The state as this step needs it: made if missing, brought to the parameter's device and type."""
    if value is None:
        if name == MASTER:
            return param.detach().to(dtype)
        state = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        # The state of a complex number is that of two real ones.
        return (
            state.fill_(complex(start, start) if state.is_complex() else start) if start else state
        )
    if not isinstance(value, Tensor) or value.shape != param.shape:
        was = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise RuntimeError(
            f"{place}: shape {tuple(param.shape)}, but its state {name} is {was}; delete "
            "optimizer.state[param] to start its state afresh"
        )
    if value.device != param.device or value.dtype != dtype:
        value = value.to(device=param.device, dtype=dtype)
    value = resolved(value)
    refuse_overlap(f"{place}, state {name}", value)
    if shards.is_dtensor(param) or shards.is_dtensor(value):
        shards.check(f"{place}, state {name}", param, value)
    result: Tensor = value
    return result


def prepared_states(
    place: Place, variant: Variant, precision: Precision, param: Tensor, slots: Slots
) -> dict[str, Tensor]:
    """All states of a parameter as this step needs them."""
    wanted = {name: precision.stored(param.dtype) for name in variant.states}
    if precision.master(param.dtype):
        wanted[MASTER] = torch.float32
    starts = {name: variant.spec.states[name].start for name in variant.states}
    return {
        name: prepared_state(place, name, param, slots.get(name), dtype, starts.get(name, 0.0))
        for name, dtype in wanted.items()
    }
