"""DTensor: the local part of a tensor, and sums across the shards of many tensors at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from ingot.base import FusedOptimizer

# One process group per dimension of the mesh that splits the tensor.
Groups = tuple[Any, ...]


def is_dtensor(tensor: Tensor) -> bool:
    """Without importing torch.distributed, which takes longer than the rest of this package."""
    if type(tensor) is Tensor or type(tensor) is Parameter:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor; any other tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: Tensor) -> bool:
    """Whether other processes hold other parts of this tensor."""
    return bool(split_by(tensor))


def split_by(tensor: Tensor, dims: Callable[[int], bool] = lambda dim: True) -> Groups:
    """The process groups over which the tensor is split along one of ``dims``."""
    if not is_dtensor(tensor):
        return ()
    sharded: DTensor = tensor  # type: ignore[assignment]
    return tuple(
        sharded.device_mesh.get_group(mesh_dim)
        for mesh_dim, placement in enumerate(sharded.placements)
        if placement.is_shard() and dims(placement.dim)  # type: ignore[attr-defined]
    )


def check(where: object, param: Tensor, other: Tensor) -> None:
    """A gradient or state must be laid out over the processes as its parameter is."""
    if not is_dtensor(param) and not is_dtensor(other):
        return
    if not (is_dtensor(param) and is_dtensor(other)):
        raise RuntimeError(
            f"{where}: a {type(param).__name__} parameter goes with a {type(other).__name__}; "
            "both must be DTensors or neither"
        )
    one: DTensor = param  # type: ignore[assignment]
    two: DTensor = other  # type: ignore[assignment]
    if any(p.is_partial() for p in (*one.placements, *two.placements)):
        raise RuntimeError(
            f"{where}: partial placements {two.placements} hold summands, not values; "
            f"redistribute to {one.placements} before the step"
        )
    if one.device_mesh != two.device_mesh or one.placements != two.placements:
        raise RuntimeError(
            f"{where}: placed as {one.placements} on {one.device_mesh}, but goes with {two.placements} "
            f"on {two.device_mesh}"
        )


def add_up(values: Sequence[Tensor], groups: Sequence[Groups]) -> list[Tensor]:
    """Each value summed over its process groups: one all-reduce per process group, whatever the number of values.

    Every process must call this with the same groups and shapes in the same order.
    """
    import torch.distributed as dist

    results = list(values)
    for process_group in dict.fromkeys(group for each in groups for group in each):
        members = [i for i, each in enumerate(groups) if process_group in each]
        packed = torch.cat([results[i].reshape(-1) for i in members])
        dist.all_reduce(packed, group=process_group)
        pieces = packed.split([results[i].numel() for i in members])
        for i, piece in zip(members, pieces, strict=True):
            results[i] = piece.reshape(results[i].shape)
    return results


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Sums are kept in double precision where the device is known to have it."""
    double = tensor.device.type in ("cpu", "cuda") or tensor.dtype is torch.float64
    return torch.float64 if double else torch.float32


def exchange(
    optimizer: FusedOptimizer,
    values: Mapping[int, Tensor],
    dims: Callable[[int], bool],
    size: Callable[[Tensor], int],
) -> dict[int, Tensor]:
    """Sum the values of sharded parameters (by their number in the optimizer) over their shards.

    A parameter without a gradient takes part with zeros, so that no process waits for another. Each value
    travels with a mark that it is there: processes that disagree about which parameters have gradients get an
    error on all of them. ``size`` tells the number of elements such a parameter's value would have had.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    splits = {i: groups for i, p in enumerate(params) if (groups := split_by(p, dims))}
    if not splits:
        return dict(values)
    packed = []
    for i in splits:
        if i in values:
            packed.append(torch.cat([values[i].reshape(-1), values[i].new_ones(1)]))
        else:
            like = local(params[i])
            zeros = torch.zeros(size(params[i]) + 1, dtype=sum_dtype(like), device=like.device)
            packed.append(zeros)
    result = dict(values)
    marks = []
    for i, total in zip(splits, add_up(packed, list(splits.values())), strict=True):
        marks.append(total[-1])
        if i in values:
            result[i] = total[:-1].reshape(values[i].shape)
    expected = [math.prod(group.size() for group in groups) for groups in splits.values()]
    for i, mark, size in zip(splits, torch.stack(marks).tolist(), expected, strict=True):
        if mark not in (0, size):
            raise RuntimeError(
                f"{type(optimizer).__name__}: parameter {i} of shape {tuple(params[i].shape)} has a "
                f"gradient on {mark:g} of the {size} processes that share it; it must have one on all "
                "of them or on none"
            )
    return result


def highest(optimizer: FusedOptimizer, value: Tensor) -> Tensor:
    """The largest of the values that the processes sharing any parameter of the optimizer hold."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    groups = dict.fromkeys(group for param in params for group in split_by(param))
    if not groups:
        return value
    import torch.distributed as dist

    value = value.clone()
    for process_group in groups:
        dist.all_reduce(value, dist.ReduceOp.MAX, group=process_group)
    return value
