"""What a backend is: the protocol every row of the table follows, with torch operators where it has nothing better."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ingot.sharding.dtensor import sum_dtype
from ingot.storage.precision import math_dtype

if TYPE_CHECKING:
    from ingot.reductions.rows import PerRow
    from ingot.step.bucket import Bucket


class Backend:
    """Updates buckets. It keeps nothing between steps but what it puts into ``bucket.scratch``.

    Attributes:
        name: what users call it.
        devices: the types of the devices whose tensors it takes; None for any.
        hint: how to get it.
    """

    name: str
    devices: tuple[str, ...] | None = None
    hint = "It is part of the package."

    def unavailable(self) -> str | None:
        """Why it cannot be used on this machine; None if it can."""
        return None

    def runs_on(self, device: torch.device) -> bool:
        """Whether it takes tensors on a device."""
        return self.devices is None or device.type in self.devices

    def suits(self, bucket: Bucket) -> bool:
        """Whether it is the better choice, compared with those after it; not asked if a backend was named."""
        return True

    def prepare(self, bucket: Bucket) -> str | None:
        """Get ready to run a bucket, changing none of its tensors; or say why that cannot be.

        Everything that can fail or needs memory happens here: after all buckets are prepared, the step is committed.
        """
        raise NotImplementedError

    def run(self, bucket: Bucket) -> None:
        """Update all tensors of a bucket that is complete in this process."""
        raise NotImplementedError

    def first(self, bucket: Bucket) -> Tensor:
        """First pass of a sharded bucket: advance the states; return local sums, [names, rows]."""
        raise NotImplementedError

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Second pass, with one (keep, rate) per row, or one for all rows."""
        raise NotImplementedError

    def wait(self, bucket: Bucket) -> None:
        """Return when all tensors of a bucket are there, for those who want to look at them before the step."""

    def gradients(self, bucket: Bucket) -> Sequence[Tensor]:
        """The gradients of a bucket, for those who want to look at them before the step."""
        return bucket.grads

    def grad_norms(self, bucket: Bucket) -> Tensor | float:
        """The norms of a bucket's gradients, as a vector; or the sum of their squares, where it is a plain number."""
        return norms(bucket.grads)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of the squares of all elements, as a 0-dim tensor on the device of the first tensor."""
        return norms(tensors).square().sum()

    def largest(self, tensors: Sequence[Tensor]) -> Tensor:
        """The largest magnitude, NaN if there is one, as a 0-dim tensor on the device of the first tensor."""
        norms = [
            torch.stack(torch._foreach_norm(each, torch.inf, dtype=sum_dtype(each[0]))).max()
            for each in by_device_and_dtype([t for t in tensors if t.numel()])
        ]
        return (
            torch.stack([norm.to(norms[0]) for norm in norms]).max()
            if norms
            else torch.zeros((), dtype=torch.float64, device="cpu")
        )

    def scale_(self, tensors: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply all tensors in place."""
        for each in by_device_and_dtype(tensors):
            torch._foreach_mul_(each, factor.to(each[0].device, math_dtype(each[0].dtype)))


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each of some tensors, by their devices and types, as a vector on the device of the first."""
    found = [
        torch.stack(torch._foreach_norm(each, 2, dtype=sum_dtype(each[0])))
        for each in by_device_and_dtype(tensors)
    ]
    return found[0] if len(found) == 1 else torch.cat([each.to(found[0]) for each in found])


def by_device_and_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Lists that torch's foreach operators take in one call."""
    lists: defaultdict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        lists[tensor.device, tensor.dtype].append(tensor)
    return list(lists.values())


def reserve(device: torch.device, elements: int, dtype: torch.dtype, count: int) -> None:
    """Allocate memory for ``count`` buffers and free it: raises here, before the commit, if memory is short.

    What a step allocates after its commit must not fail. Freed memory stays available to the next allocation: in
    torch's cache on accelerators, within the limit of the process on the CPU.
    """
    torch.empty(count * elements, dtype=dtype, device=device)
