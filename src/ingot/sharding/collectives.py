"""Sums and maxima across processes: one all-reduce per process group, whatever the number of tensors.

Every process lays its numbers out by the parameters of its optimizer, not by the gradients it happens to have.
So all of them send the same number of values in the same order, also a process with nothing but empty shards or
without any gradient, and nobody waits for ever. A mark per parameter travels along that tells whether it has a
gradient: processes that disagree all get an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ingot.sharding.dtensor import Groups, local, splits_of, sum_dtype
from ingot.storage.precision import SUPPORTED

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

Scope = tuple[int, torch.dtype]  # one param group and the type of its parameters
Measure = Callable[[Sequence[Tensor]], Tensor]  # some gradients to one number, as a 0-dim tensor


class Block(NamedTuple):
    """Columns of numbers, some in a row for every tensor; the columns of each are added over its groups."""

    values: Tensor  # [quantities, columns]
    groups: Sequence[Groups]  # per tensor
    counts: Sequence[int] | None = None  # columns per tensor; None: one each


def all_reduce(values: Tensor, group: Any, op: str = "SUM") -> Tensor:
    """The sum (or maximum) over a process group, of one contiguous tensor."""
    import torch.distributed as dist

    # With CPU offload the numbers are on the CPU, but the process group may only know the accelerator.
    devices = [device.type for device in group._device_types]
    there = values if values.device.type in devices else values.to(devices[0])
    dist.all_reduce(there, getattr(dist.ReduceOp, op), group=group)
    return there.to(values.device)


def add_up(blocks: Sequence[Block]) -> None:
    """Add every tensor's columns over its process groups, in place: one all-reduce per process group."""
    every = [groups for block in blocks for groups in block.groups]
    for group in dict.fromkeys(group for groups in every for group in groups):
        chosen = [(block.values, columns(block, group)) for block in blocks]
        pieces = [values[:, index] for values, index in chosen]
        sums = all_reduce(torch.cat([piece.reshape(-1) for piece in pieces]), group)
        for (values, index), piece, total in zip(
            chosen, pieces, sums.split([piece.numel() for piece in pieces]), strict=True
        ):
            values[:, index] = total.reshape(piece.shape)


def columns(block: Block, group: Any) -> slice | Tensor:
    """Which columns of a block are added over a process group."""
    mine = [group in groups for groups in block.groups]
    if all(mine):
        return slice(None)
    mask = torch.tensor(mine, device="cpu")
    if block.counts is not None:
        mask = mask.repeat_interleave(torch.tensor(block.counts, device="cpu"))
    return mask.nonzero().reshape(-1).to(block.values.device)


def highest(values: Tensor, group: Any) -> Tensor:
    """The largest of each value over a process group; NaN where one of them is NaN, as torch.max has it."""
    missing = torch.isnan(values)
    # Whether the maximum of a number and NaN is NaN depends on the library that reduces.
    packed = torch.cat([torch.where(missing, 0.0, values), missing.to(values.dtype)])
    largest, missing = all_reduce(packed, group, "MAX").chunk(2)
    return torch.where(missing > 0, torch.nan, largest)


class Roll:
    """The parameters of an optimizer that are split over processes, and which of them have a gradient here."""

    def __init__(self, optimizer: FusedOptimizer, present: Collection[int], failed: bool = False):
        """``failed``: this process could not plan the step, and only takes part to tell the others."""
        self.name = type(optimizer).__name__
        params = optimizer.all_params()
        splits = {i: split for i, split in enumerate(splits_of(params)) if split.groups}
        self.params = {i: params[i] for i in splits}
        self.splits = splits
        self.groups = [split.groups for split in splits.values()]
        self.device = local(
            next(iter([*self.params.values(), *params]), torch.empty(0, device="cpu"))
        ).device
        kinds = {(p.device.type, p.dtype): p for p in self.params.values()}
        double = all(sum_dtype(param) is torch.float64 for param in kinds.values())
        self.dtype = torch.float64 if double else torch.float32
        marks = [math.nan if failed else float(i in present) for i in splits]
        self.marks = torch.tensor([marks], dtype=self.dtype, device=self.device)

    @property
    def block(self) -> Block:
        """The marks, to be added up with other blocks."""
        return Block(self.marks, self.groups)

    @property
    def distinct(self) -> list[Any]:
        """Each process group once, in the order all processes agree on."""
        return list(dict.fromkeys(group for groups in self.groups for group in groups))

    def check(self) -> None:
        """Raise on every process if they disagree; after the marks were added up."""
        for ordinal, groups, mark in zip(
            self.params, self.groups, self.marks[0].tolist(), strict=True
        ):
            size = math.prod(group.size() for group in groups)
            if math.isnan(mark):
                raise RuntimeError(
                    f"{self.name}: another process could not make this step; its own error says why"
                )
            if mark not in (0, size):
                raise self.disagreement(ordinal, f"{mark:g} of the {size}")

    def disagreement(self, ordinal: int, where: str) -> RuntimeError:
        """The error about a parameter that has a gradient on some processes only."""
        shape = tuple(self.params[ordinal].shape)
        return RuntimeError(
            f"{self.name}: parameter {ordinal} of shape {shape} has a gradient on {where} processes "
            "that share it; it must have one on all of them or on none"
        )


def gradient_sums(
    optimizer: FusedOptimizer, grads: Mapping[int, Tensor], measure: Measure, failed: bool = False
) -> dict[Scope, Tensor]:
    """The sum of ``measure`` over the gradients of each group and dtype, complete across processes.

    Args:
        optimizer: whose gradients these are.
        grads: local gradients by the number of their parameter.
        measure: sums one kind of number over some local gradients.
        failed: this process could not plan the step.
    """
    lists: dict[tuple[Scope, Groups], list[Tensor]] = {}
    pairs = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    splits = splits_of(param for _, param in pairs)
    for ordinal, ((number, param), split) in enumerate(zip(pairs, splits, strict=True)):
        tensors = lists.setdefault(((number, param.dtype), split.groups), [])
        if ordinal in grads:
            tensors.append(grads[ordinal])
    apart = any(groups for _, groups in lists)
    if not apart and optimizer.norm_group is None:
        sums = {scope: measure(tensors) for (scope, _), tensors in lists.items() if tensors}
        home = next(iter(sums.values()), None)
        return {scope: value.to(home) for scope, value in sums.items()}
    roll = Roll(optimizer, grads.keys(), failed)
    values = torch.zeros(1, len(lists), dtype=roll.dtype, device=roll.device)
    for column, tensors in enumerate(lists.values()):
        if tensors:
            values[0, column] = measure(tensors)
    if apart:
        add_up([Block(values, [groups for _, groups in lists]), roll.block])
    sums = {}
    for (scope, _), value in zip(lists, values[0], strict=True):
        sums[scope] = sums[scope] + value if scope in sums else value
    if optimizer.norm_group is not None:
        sums = over_norm_group(optimizer, sums, roll, failed)
    roll.check()
    return sums


def over_norm_group(
    optimizer: FusedOptimizer, sums: Mapping[Scope, Tensor], roll: Roll, failed: bool
) -> dict[Scope, Tensor]:
    """Add up what the optimizers of other processes have, which hold other parameters of the same model.

    They need not have parameters of the same types, so there is a place for every type.
    """
    scopes = [(n, dtype) for n in range(len(optimizer.param_groups)) for dtype in SUPPORTED]
    zero = torch.zeros((), dtype=roll.dtype, device=roll.device)
    trouble = torch.full_like(zero, math.nan if failed else 0.0)
    packed = torch.stack([*(sums.get(scope, zero) for scope in scopes), trouble])
    packed = all_reduce(packed, optimizer.norm_group)
    if math.isnan(float(packed[-1])) and not failed:
        raise RuntimeError(
            f"{roll.name}: another process could not make this step; its own error says why"
        )
    return dict(zip(scopes, packed[:-1], strict=True))


def largest_gradient(optimizer: FusedOptimizer, value: Tensor, present: Collection[int]) -> Tensor:
    """The largest of the values that processes with other shards or other parameters of the model hold."""
    roll = Roll(optimizer, present)
    groups = [*roll.distinct, *(() if optimizer.norm_group is None else (optimizer.norm_group,))]
    if not groups:
        return value
    marks = roll.marks[0]
    values = torch.cat([value.reshape(1).to(marks), marks, -marks])
    for group in groups:
        # Marks are those of the shards of a parameter: they end where its processes do.
        part = values if group is not optimizer.norm_group else values[:1]
        values[: len(part)] = highest(part, group)
    largest, some, none = values.split([1, len(marks), len(marks)])
    for ordinal, differ in zip(roll.params, (some != -none).tolist(), strict=True):
        if differ:
            raise roll.disagreement(ordinal, "some")
    result: Tensor = largest[0]
    return result.to(value)


def overflowed(optimizer: FusedOptimizer, found_inf: Tensor, scale: Tensor | None) -> bool:
    """Whether a GradScaler found an overflow on any process that holds a shard; raises where its scales differ.

    torch 2.13 reduces found_inf over the processes of the first gradient of a list only, and that one may be
    replicated. Costs one all-reduce of three numbers per process group, only with a scaler and sharded parameters.
    """
    roll = Roll(optimizer, ())
    if not roll.groups:
        return bool(found_inf != 0)
    known = 1.0 if scale is None else float(scale)
    values = torch.tensor([float(found_inf), known, -known], dtype=roll.dtype, device=roll.device)
    for group in roll.distinct:
        values = highest(values, group)
    found, largest, smallest = values.tolist()
    if largest != -smallest:
        raise RuntimeError(
            f"{roll.name}: GradScaler has the scale {known:g} here, but {-smallest:g} to {largest:g} on "
            "the processes that share parameters; an overflow that only some of them saw changed it"
        )
    return bool(found != 0)
