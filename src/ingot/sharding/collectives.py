"""Sums and maxima across processes: one all-reduce per process group, whatever the number of tensors.

Every process lays its numbers out by the parameters of its optimizer, not by the gradients it happens to have.
So all of them send the same number of values in the same order, also a process with nothing but empty shards or
without any gradient, and nobody waits for ever. A mark per sharded parameter travels along that tells whether it
has a gradient: processes that disagree all get an error.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.sharding.dtensor import ProcessGroups, has_double
from ingot.step.roster import Roster
from ingot.storage.precision import SUPPORTED

Scope = tuple[int, torch.dtype]  # one param group and the type of its parameters
Measure = Callable[[Sequence[Tensor]], Tensor]  # some gradients to one number, as a 0-dim tensor
FAILED = "another process could not make this step; its own error says why"


class Summands(NamedTuple):
    """Numbers to be added across processes; each tensor has some neighbouring columns of ``values``."""

    values: Tensor  # [quantities, columns]
    # The process groups over which the columns of a tensor are added, per tensor.
    groups: Sequence[ProcessGroups]
    counts: Sequence[int] | None = None  # columns per tensor; None: one each


def all_reduce(
    values: Tensor, group: Any, op: str = "SUM", dtype: torch.dtype | None = None
) -> Tensor:
    """The sum (or maximum) over a process group, of one contiguous tensor; ``dtype``: sent in this type."""
    import torch.distributed as dist

    # With CPU offload the numbers are on the CPU, but the process group may only know the accelerator.
    near = values.device.type in [device.type for device in group._device_types]
    device = values.device if near else group._device_types[0]
    there = values.to(device, dtype or (values.dtype if near else common_dtype(group)))
    dist.all_reduce(there, getattr(dist.ReduceOp, op), group=group)
    return there.to(values.device, values.dtype)


def common_dtype(group: Any) -> torch.dtype:
    """The type that all members of a process group can send numbers in, whatever parameters each of them has."""
    return torch.float64 if all(map(has_double, group._device_types)) else torch.float32


def add_up(summands: Sequence[Summands]) -> None:
    """Add every tensor's columns over its process groups, in place: one all-reduce per process group."""
    every = [groups for each in summands for groups in each.groups]
    for group in dict.fromkeys(group for groups in every for group in groups):
        chosen = [(each.values, columns_of(each, group)) for each in summands]
        pieces = [values[:, index] for values, index in chosen]
        sums = all_reduce(torch.cat([piece.reshape(-1) for piece in pieces]), group)
        for (values, index), piece, total in zip(
            chosen, pieces, sums.split([piece.numel() for piece in pieces]), strict=True
        ):
            values[:, index] = total.reshape(piece.shape)


def columns_of(summands: Summands, group: Any) -> slice | Tensor:
    """Which columns are added over a process group."""
    mine = [group in groups for groups in summands.groups]
    if all(mine):
        return slice(None)
    mask = torch.tensor(mine, device="cpu")
    if summands.counts is not None:
        mask = mask.repeat_interleave(torch.tensor(summands.counts, device="cpu"))
    return mask.nonzero().reshape(-1).to(summands.values.device)


def highest(values: Tensor, group: Any, dtype: torch.dtype | None = None) -> Tensor:
    """The largest of each value over a process group; NaN if one of them is NaN, as with torch.max."""
    missing = torch.isnan(values)
    # Whether the maximum of a number and NaN is NaN depends on the library that reduces.
    packed = torch.cat([torch.where(missing, 0.0, values), missing.to(values.dtype)])
    largest, missing = all_reduce(packed, group, "MAX", dtype).chunk(2)
    return torch.where(missing > 0, torch.nan, largest)


class Presence:
    """Which of the sharded parameters have a gradient here; to be compared with the other processes."""

    def __init__(self, roster: Roster, present: Collection[int], failed: bool = False) -> None:
        """``failed``: this process could not plan the step, and only takes part to tell the others."""
        self.roster = roster
        self.groups = [roster.splits[i].groups for i in roster.sharded]
        marks = [math.nan if failed else float(i in present) for i in roster.sharded]
        self.marks = torch.tensor([marks], dtype=roster.sum_dtype, device=roster.device)

    @property
    def summands(self) -> Summands:
        """The marks, to be added up with other numbers."""
        return Summands(self.marks, self.groups)

    def check(self) -> None:
        """Raise on every process if they disagree; after the marks were added up."""
        marks = self.marks[0].tolist()
        for ordinal, groups, mark in zip(self.roster.sharded, self.groups, marks, strict=True):
            size = math.prod(group.size() for group in groups)
            if math.isnan(mark):
                raise RuntimeError(f"{self.roster.owner}: {FAILED}")
            if mark not in (0, size):
                raise self.disagreement(ordinal, f"{mark:g} of the {size}")

    def disagreement(self, ordinal: int, where: str) -> RuntimeError:
        """The error about a parameter that has a gradient on some processes only."""
        return RuntimeError(
            f"{self.roster.owner}: parameter {ordinal} has a gradient on {where} processes that share it; "
            "it must have one on all of them or on none"
        )


def step_groups(roster: Roster, norm_group: Any) -> list[Any]:
    """The process groups whose members make their steps together, each once, in the order all of them agree on."""
    shared = (group for i in roster.sharded for group in roster.splits[i].groups)
    found = list(dict.fromkeys(shared))
    return found if norm_group is None else [*found, norm_group]


def agree_on_gradients(roster: Roster, present: Collection[int], failed: bool = False) -> None:
    """Raise on every process if they disagree about which sharded parameters have a gradient."""
    if roster.sharded:
        presence = Presence(roster, present, failed)
        add_up([presence.summands])
        presence.check()


def gradient_sums(
    roster: Roster,
    scopes: Sequence[Scope],
    norm_group: Any,
    grads: Mapping[int, Tensor],
    measure: Measure,
    failed: bool = False,
) -> dict[Scope, Tensor]:
    """The sum of ``measure`` over the gradients of each group and dtype, complete across processes.

    Args:
        roster: whose gradients these are.
        scopes: the group and dtype of every parameter.
        norm_group: a process group whose members have other parameters of the same model; or None.
        grads: local gradients by the number of their parameter.
        measure: sums one kind of number over some local gradients.
        failed: this process could not plan the step.
    """
    lists: dict[tuple[Scope, ProcessGroups], list[Tensor]] = {}
    for ordinal, (scope, split) in enumerate(zip(scopes, roster.splits, strict=True)):
        tensors = lists.setdefault((scope, split.groups), [])
        if ordinal in grads:
            tensors.append(grads[ordinal])
    if not roster.sharded and norm_group is None:
        sums = {scope: measure(tensors) for (scope, _), tensors in lists.items() if tensors}
        home = next(iter(sums.values()), None)
        return {scope: value.to(home) for scope, value in sums.items()}
    values = torch.zeros(1, len(lists), dtype=roster.sum_dtype, device=roster.device)
    try:
        for column, tensors in enumerate(lists.values()):
            if tensors:
                values[0, column] = measure(tensors)
    except Exception:
        with contextlib.suppress(RuntimeError):  # processes that would wait for this one are told
            gradient_sums(roster, scopes, norm_group, {}, measure, failed=True)
        raise
    presence = Presence(roster, grads.keys(), failed)
    if roster.sharded:
        add_up([Summands(values, [groups for _, groups in lists]), presence.summands])
    sums = {}
    for (scope, _), value in zip(lists, values[0], strict=True):
        sums[scope] = sums[scope] + value if scope in sums else value
    if norm_group is not None:
        sums = over_norm_group(roster, norm_group, sums, failed)
    presence.check()
    return sums


def over_norm_group(
    roster: Roster, norm_group: Any, sums: Mapping[Scope, Tensor], failed: bool
) -> dict[Scope, Tensor]:
    """Add up what the optimizers of other processes have, which hold other parameters of the same model.

    They need not have parameters of the same types, so there is a place for every type.
    """
    scopes = [(n, dtype) for n in range(len(roster.sizes)) for dtype in SUPPORTED]
    zero = torch.zeros((), dtype=roster.sum_dtype, device=roster.device)
    trouble = torch.full_like(zero, math.nan if failed else 0.0)
    packed = torch.stack([*(sums.get(scope, zero) for scope in scopes), trouble])
    packed = all_reduce(packed, norm_group, dtype=common_dtype(norm_group))
    if math.isnan(float(packed[-1])) and not failed:
        raise RuntimeError(f"{roster.owner}: {FAILED}")
    return dict(zip(scopes, packed[:-1], strict=True))


def largest_gradient(
    roster: Roster, norm_group: Any, value: Tensor, present: Collection[int], failed: bool = False
) -> Tensor:
    """The largest of the values that processes with other shards or other parameters of the model hold."""
    groups = step_groups(roster, norm_group)
    if not groups:
        return value
    presence = Presence(roster, present, failed)
    marks = presence.marks[0]
    trouble = marks.new_tensor([math.nan if failed else 0.0])
    values = torch.cat([value.reshape(1).to(marks), trouble, marks, -marks])
    for group in groups:
        part, dtype = values, None
        if group is norm_group:
            # Its members have other parameters, for which these marks mean nothing.
            part, dtype = values[:2], common_dtype(group)
        values[: len(part)] = highest(part, group, dtype)
    largest, trouble, some, none = values.split([1, 1, len(marks), len(marks)])
    if bool(trouble.isnan()):
        raise RuntimeError(f"{roster.owner}: {FAILED}")
    for ordinal, differ in zip(roster.sharded, (some != -none).tolist(), strict=True):
        if differ:
            raise presence.disagreement(ordinal, "some")
    result: Tensor = largest[0]
    return result.to(value)


def overflowed(
    roster: Roster, groups: Sequence[Any], found_inf: Tensor, scale: Tensor | None
) -> bool:
    """Whether a GradScaler found an overflow in any process of these groups; raises where its scales differ.

    torch 2.13 reduces found_inf over the processes of the first gradient of a list only, and that one may be
    replicated. Costs one all-reduce of three numbers per process group, only with a scaler and such groups.
    """
    if not groups:
        return bool(found_inf != 0)
    known = 1.0 if scale is None else float(scale)
    dtype = torch.float32  # as a GradScaler keeps its scale
    values = torch.tensor([float(found_inf), known, -known], dtype=dtype, device=roster.device)
    for group in groups:
        values = highest(values, group, dtype)
    found, largest, smallest = values.tolist()
    if largest != -smallest:
        raise RuntimeError(
            f"{roster.owner}: GradScaler has the scale {known:g} here, but {-smallest:g} to {largest:g} on the "
            "processes that share parameters; give all of them the same, for example with scaler.update(new_scale)"
        )
    return bool(found != 0)
