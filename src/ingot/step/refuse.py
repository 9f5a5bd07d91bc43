"""Everything a step refuses to update, each with a message that names the parameter; nothing is changed then."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from torch import Tensor

from ingot.sharding import dtensor
from ingot.step.overlap import overlaps_itself
from ingot.step.roster import Place
from ingot.storage import offload
from ingot.storage.precision import SUPPORTED


def refuse_pair(where: Place, param: Tensor, grad: Tensor) -> None:
    """A parameter or gradient that no backend can take."""
    if grad.layout is not torch.strided:
        raise RuntimeError(f"{where}: {where.owner} does not support sparse gradients")
    if param.dtype not in SUPPORTED or grad.dtype not in SUPPORTED:
        raise RuntimeError(
            f"{where}: parameter of {param.dtype} with a gradient of {grad.dtype}; "
            f"supported are {', '.join(map(str, SUPPORTED))}"
        )
    if param.dtype.is_complex != grad.dtype.is_complex:
        raise RuntimeError(f"{where}: a {param.dtype} parameter with a {grad.dtype} gradient")
    if param.is_conj():
        raise RuntimeError(f"{where}: a lazily conjugated view; call resolve_conj() first")
    if param.is_inference():
        raise RuntimeError(
            f"{where}: an inference tensor, which may not be changed outside inference mode; clone() it first"
        )
    if param.is_meta or grad.is_meta:
        raise RuntimeError(f"{where}: a meta tensor has no values to update")
    if param.shape != grad.shape:
        raise RuntimeError(
            f"{where}: shape {tuple(param.shape)}, but its gradient has shape {tuple(grad.shape)}"
        )
    if param.device != grad.device:
        raise RuntimeError(
            f"{where}: on {param.device}, but its gradient is on {grad.device}; "
            "the parameter was moved after backward()"
        )
    refuse_self_overlap(where, param)
    dtensor.check(where, param, grad)


def refuse_slots(where: Place, slots: object) -> None:
    """What stands in ``optimizer.state`` for a parameter and holds no states."""
    if not isinstance(slots, MutableMapping):
        raise RuntimeError(
            f"{where}: its state must be a dictionary, not {slots!r}; delete optimizer.state[param] to start it afresh"
        )


def refuse_offload(where: object, param: Tensor) -> None:
    """A parameter whose states cannot be kept on the host."""
    reason = offload.problem(param)
    if reason is not None:
        raise ValueError(f"{where}: {reason}")


def refuse_self_overlap(where: object, tensor: Tensor) -> None:
    """A tensor that cannot be written to, because one element would overwrite another."""
    if overlaps_itself(dtensor.local(tensor)):
        raise RuntimeError(
            f"{where}: some of its elements share memory (shape {tuple(tensor.shape)}, strides "
            f"{tensor.stride()}); clone() it first"
        )
