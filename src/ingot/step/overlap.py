"""Tensors that share memory: what may still be updated, in which order, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import gcd
from operator import le
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ingot.step.bucket import Bucket
from ingot.step.roster import PLAIN, Place

T = TypeVar("T")


class Extent(NamedTuple):
    """The addresses a tensor lies between, and its role in the step."""

    begin: int
    end: int
    role: str  # "param", "grad" or the name of a state
    bucket: int
    member: int  # its place in the bucket
    tensor: Tensor


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements of a strided tensor share memory, as those of an expanded one do."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return False
    dims = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
    reach, nested = 0, True  # the largest offset of the dimensions so far
    for stride, size in dims:
        nested = nested and stride > reach
        reach += (size - 1) * stride
    if nested:
        return False
    if any(stride == 0 for stride, _ in dims):
        return True
    used = torch.zeros(reach + 1, dtype=torch.bool, device="cpu")
    used.as_strided(tensor.shape, tensor.stride()).fill_(True)
    return int(used.count_nonzero()) < tensor.numel()


def extent_of(tensor: Tensor) -> tuple[int, int] | None:
    """The addresses a tensor lies between; None if it has no elements or no memory of its own to look at."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    size = tensor.nbytes
    if size == 0:
        return None
    if not tensor.is_contiguous():
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        size = (reach + 1) * tensor.element_size()
    begin = tensor.data_ptr()
    return begin, begin + size


def are_apart(tensors: Iterable[Tensor]) -> bool:
    """Whether no address is in use twice. False is inconclusive: tensors on different devices may have equal addresses.

    Beginnings and ends are sorted separately, which is quicker than to sort the pairs. If no two tensors overlap, the
    two lists belong to the same tensors in the same order, and each tensor begins after the one before it has ended.
    If two overlap, then at an address inside both at least two more tensors have begun than have ended, so some
    beginning comes before the end that stands one place earlier in its list.
    """
    extents = [extent for extent in map(extent_of, tensors) if extent is not None]
    begins = sorted([begin for begin, _ in extents])
    ends = sorted([end for _, end in extents])
    return all(map(le, ends, begins[1:]))


def any_overlap(written: Sequence[Sequence[Tensor]], read: Sequence[Tensor]) -> bool:
    """Whether a written tensor lies between the addresses of another; what is only read may share memory."""
    if are_apart(chain(*written, read)):
        return False  # nearly always
    extents = defaultdict(list)
    for writes, tensors in [*((True, each) for each in written), (False, read)]:
        for tensor in tensors:
            extent = extent_of(tensor)
            if extent is not None:
                extents[tensor.device].append((*extent, writes))
    for each in extents.values():
        end, written_end = 0, 0
        for begin, stop, writes in sorted(each):
            if begin < (end if writes else written_end):
                return True
            end = max(end, stop)
            written_end = max(written_end, stop) if writes else written_end
    return False


def disentangle(buckets: Sequence[Bucket], place: Callable[[int], Place]) -> list[Bucket]:
    """Buckets that give the right result although tensors of theirs share memory.

    Gradients that lie in what the step writes are copied. Parameters that share memory get a bucket each and are
    updated one after the other, in their order. States that share memory with anything cannot be right: refused.
    """
    alone: set[tuple[int, int]] = set()
    for cluster in clusters(extents_of(buckets)):
        states = [e for e in cluster if e.role not in ("param", "grad")]
        for state in states:
            refuse_shared_state(buckets, state, cluster, place)
        for each in cluster:
            if each.role == "grad":
                buckets[each.bucket].grads[each.member] = each.tensor.clone()
        params = [(e.bucket, e.member) for e in cluster if e.role == "param"]
        alone.update(params if len(params) > 1 else ())
    return separated(buckets, alone, place) if alone else list(buckets)


def extents_of(buckets: Sequence[Bucket]) -> Iterator[Extent]:
    """Where all tensors of a step lie."""
    for number, bucket in enumerate(buckets):
        lists = [("param", bucket.params), ("grad", bucket.grads)]
        lists += [("a state", tensors) for tensors in bucket.states]
        lists += [("its master copy", bucket.masters)] if bucket.masters is not None else []
        for role, tensors in lists:
            for index, tensor in enumerate(tensors):
                span = extent_of(tensor)
                if span is not None:
                    yield Extent(*span, role, number, index, tensor)


def clusters(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """Tensors that lie between each other's addresses, if one of them is written."""
    by_device: defaultdict[torch.device, list[Extent]] = defaultdict(list)
    for extent in extents:
        by_device[extent.tensor.device].append(extent)
    for each in by_device.values():
        cluster: list[Extent] = []
        end = 0
        for extent in sorted(each, key=lambda e: e[:2]):
            if extent.begin >= end:
                yield from [cluster] if is_tangle(cluster) else []
                cluster = []
            cluster.append(extent)
            end = max(end, extent.end)
        yield from [cluster] if is_tangle(cluster) else []


def is_tangle(cluster: Sequence[Extent]) -> bool:
    """Whether several tensors share addresses and one of them is written; gradients are only read."""
    return len(cluster) > 1 and any(each.role != "grad" for each in cluster)


def refuse_shared_state(
    buckets: Sequence[Bucket],
    state: Extent,
    cluster: Sequence[Extent],
    place: Callable[[int], Place],
) -> None:
    """Raise if a state has a byte in common with another tensor of its cluster."""
    for other in cluster:
        if other is not state and share_memory(state.tensor, other.tensor):
            ordinal = buckets[state.bucket].members.ordinals[state.member]
            theirs = buckets[other.bucket].members.ordinals[other.member]
            raise RuntimeError(
                f"{place(ordinal)}: {state.role} shares memory with {other.role} of "
                f"{'the same parameter' if ordinal == theirs else place(theirs)}; clone() one of them"
            )


def share_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two strided tensors on the same device have a byte in common.

    Tensors may lie between each other's addresses without that, as the columns of one matrix do. The memory between
    their ends is looked at in pieces of the size of an element; in smaller ones only where the sizes of their elements
    differ, or where one begins in the middle of an element of the other.
    """
    ours, theirs = extent_of(one), extent_of(two)
    if ours is None or theirs is None or ours[1] <= theirs[0] or theirs[1] <= ours[0]:
        return False
    begin, end = min(ours[0], theirs[0]), max(ours[1], theirs[1])
    unit = gcd(one.element_size(), two.element_size(), ours[0] - theirs[0])
    used = torch.zeros((end - begin) // unit, dtype=torch.bool, device="cpu")
    pieces_of(one, used, begin, unit).fill_(True)
    return bool(pieces_of(two, used, begin, unit).any())


def pieces_of(tensor: Tensor, memory: Tensor, begin: int, unit: int) -> Tensor:
    """The places of a tensor among those of some memory, which begins at an address and has a place for each unit."""
    size = tensor.element_size() // unit
    # A dimension without a stride has the same places again.
    dims = [(n, s * size) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s]
    shape, strides = zip(*dims, (size, 1), strict=True)
    return memory.as_strided(shape, strides, (tensor.data_ptr() - begin) // unit)


def separated(
    buckets: Sequence[Bucket], alone: set[tuple[int, int]], place: Callable[[int], Place]
) -> list[Bucket]:
    """The same work with a bucket for each of some tensors, in the order of the parameters."""
    result = []
    for number, bucket in enumerate(buckets):
        singles = [i for i in range(len(bucket.params)) if (number, i) in alone]
        if singles and bucket.members.sharded:
            raise RuntimeError(
                f"{place(bucket.members.ordinals[singles[0]])}: a sharded tensor that shares memory with "
                "another parameter cannot be updated; clone() it first"
            )
        rest = [i for i in range(len(bucket.params)) if (number, i) not in alone]
        result += [part(bucket, chosen) for chosen in [rest, *([i] for i in singles)] if chosen]
    return sorted(result, key=lambda bucket: bucket.members.ordinals[0])


def part(bucket: Bucket, chosen: Sequence[int]) -> Bucket:
    """A bucket of some tensors of another; it has yet to be given to a backend."""

    def pick(values: Sequence[T]) -> list[T]:
        return [values[i] for i in chosen] if values else []

    old, rounding = bucket.members, bucket.rounding
    members = replace(
        old,
        owners=pick(old.owners),
        ordinals=pick(old.ordinals),
        slots=pick(old.slots),
        fresh=pick(old.fresh),
    )
    if rounding is not None:
        rounding = replace(rounding, ordinals=pick(rounding.ordinals), starts=pick(rounding.starts))
    return replace(
        bucket,
        params=pick(bucket.params),
        grads=pick(bucket.grads),
        states=[pick(tensors) for tensors in bucket.states],
        masters=None if bucket.masters is None else pick(bucket.masters),
        shapes=pick(bucket.shapes),
        rounding=rounding,
        members=members,
        scratch={},
    )
