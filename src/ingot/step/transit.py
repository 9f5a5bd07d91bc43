"""Runs buckets whose parameters are on an accelerator, on the host: in pieces, each as soon as it has arrived.

While one piece is updated, gradients of the next ones travel to the host, and parameters of the last ones back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from torch import Tensor

from ingot.backends.backend import Backend
from ingot.reductions.rows import PerRow
from ingot.step.bucket import Bucket
from ingot.step.overlap import Extent, clusters, extent_of, part, share_memory
from ingot.step.roster import Place
from ingot.storage.offload import Offload, is_away

# Elements updated at a time: enough for all threads, and little enough that the first piece does not wait for long and
# the last parameters are not sent late.
PIECE = 1 << 22


class Transit(Backend):
    """Another backend, with the journey of one bucket around it."""

    def __init__(self, backend: Backend, offload: Offload) -> None:
        self.backend, self.offload, self.name = backend, offload, backend.name
        self.pieces: list[Bucket] = []  # none: the whole bucket

    def prepare(self, bucket: Bucket) -> str | None:
        """Prepare every piece: nothing may fail once the first of them runs."""
        chosen = [*chunks(bucket, self.offload)]
        if len(chosen) == 1:
            return None  # the other backend has prepared it
        self.pieces = [part(bucket, each) for each in chosen]
        reasons = map(self.backend.prepare, self.pieces)
        return next((reason for reason in reasons if reason is not None), None)

    def run(self, bucket: Bucket) -> None:
        """Update the pieces in the order of their arrival."""
        for piece in self.pieces or [bucket]:
            owners = piece.members.owners
            piece.grad_scale = bucket.grad_scale
            self.offload.wait(owners)
            self.backend.run(piece)
            self.offload.send_back(owners)
        self.offload.settle(bucket.members.owners)

    def first(self, bucket: Bucket) -> Tensor:
        """First pass over the whole bucket, where somebody watches the sums."""
        self.wait(bucket)
        return self.backend.first(bucket)

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Second pass, then the journey back."""
        self.backend.second(bucket, keep, rate)
        self.offload.send_back(bucket.members.owners)
        self.offload.settle(bucket.members.owners)

    def wait(self, bucket: Bucket) -> None:
        """Return when parameters and gradients have arrived."""
        self.offload.wait(bucket.members.owners)

    def gradients(self, bucket: Bucket) -> Sequence[Tensor]:
        """All gradients, when they have arrived."""
        self.offload.wait_for_gradients(bucket.members.owners)
        return bucket.grads

    def grad_norms(self, bucket: Bucket) -> Tensor | float:
        """Over the whole bucket, so that pieces do not change the order of the summands."""
        self.gradients(bucket)
        return self.backend.grad_norms(bucket)


def chunks(bucket: Bucket, offload: Offload) -> Iterator[list[int]]:
    """The members of a bucket in the order in which their gradients were sent, about PIECE elements at a time."""
    order = sorted(range(len(bucket.params)), key=lambda i: offload.place(bucket.members.owners[i]))
    chunk: list[int] = []
    elements = 0
    for index in order:
        chunk.append(index)
        elements += bucket.params[index].numel()
        if elements >= PIECE:
            yield chunk
            chunk, elements = [], 0
    if chunk:
        yield chunk


def take_along(buckets: Sequence[Bucket], offload: Offload, place: Callable[[int], Place]) -> None:
    """Put the journey around the backends of buckets, which are prepared; ``place`` names parameters in messages."""
    away = [b for b in buckets if any(map(is_away, b.members.owners))]
    refuse_shared(away, place)
    for bucket in away:
        transit = Transit(bucket.backend, offload)
        reason = transit.prepare(bucket)
        if reason is not None:
            raise RuntimeError(f"{bucket.backend.name} cannot run a part of this step: {reason}")
        bucket.backend = transit
        bucket.turn = max(map(offload.place, bucket.members.owners))


def refuse_shared(buckets: Sequence[Bucket], place: Callable[[int], Place]) -> None:
    """Raise if a parameter shares memory with another or with a gradient.

    Their copies on the host do not: one update would be lost.
    """
    extents: list[Extent] = []
    for number, bucket in enumerate(buckets):
        for index, owner in enumerate(bucket.members.owners):
            assert owner.grad is not None
            for role, tensor in (("param", owner), ("grad", owner.grad)):
                span = extent_of(tensor)
                if span is not None:
                    extents.append(Extent(*span, role, number, index, tensor))
    for cluster in clusters(extents):
        for one, two in combinations(cluster, 2):
            written = "param" in (one.role, two.role)
            if written and share_memory(one.tensor, two.tensor):
                first, second = (
                    place(buckets[each.bucket].members.ordinals[each.member]) for each in (one, two)
                )
                raise RuntimeError(
                    f"{first}: its {one.role} shares memory with the {two.role} of {second}, which "
                    "offload='cpu' does not take; clone() one of them, or leave offload out"
                )
