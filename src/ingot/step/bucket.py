"""The unit of work of a backend, and the record of whose tensors it holds."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.declare.spec import Variant
from ingot.storage.format import Format
from ingot.storage.rounding import Rounding

if TYPE_CHECKING:
    from ingot.backends.backend import Backend

Slots = dict[str, Any]  # the state of one parameter, as it stands in optimizer.state


@dataclass(eq=False)
class Members:
    """Whose tensors a bucket holds, in its order; backends do not look at it."""

    group: int
    step: int  # the number of the step about to be made
    counted: bool  # whether that number is kept in the state
    sharded: bool  # other processes hold other parts, and sums over whole tensors are needed
    dtype: torch.dtype  # of the owners
    owners: list[Tensor]  # the user's parameters
    ordinals: list[int]  # their numbers in the optimizer
    slots: list[Slots]  # their entries in optimizer.state
    # What the step adds to each of those entries; empty if it adds nothing to any.
    fresh: list[Slots]

    def commit(self, state: MutableMapping[Tensor, Slots]) -> None:
        """Write step counts and new states into the optimizer's state; nothing can fail any more."""
        if self.counted:
            for slots in self.slots:
                slots["step"] = self.step
        for owner, slots, fresh in zip(self.owners, self.slots, self.fresh, strict=False):
            slots.update(fresh)
            if slots and owner not in state:
                state[owner] = slots


@dataclass(eq=False)
class Bucket:
    """Tensors that share group, device, types and step: what one call of a backend updates.

    ``params``, ``grads``, ``states`` and ``masters`` are local and real: the shard of a DTensor, the real view of
    a complex tensor. ``states`` has one list per state and part of its format, in the order of ``variant.states``.
    """

    variant: Variant
    scalars: Any
    params: list[Tensor]
    grads: list[Tensor]
    states: list[list[Tensor]]
    formats: tuple[Format, ...]  # one per state
    masters: list[Tensor] | None  # float32 copies of 16-bit parameters
    shapes: list[torch.Size]  # of the owners: the whole tensor where ``params`` has a shard
    inner_dims: int  # dimensions at the end that belong to one element: 1 for the real view of a complex tensor
    plain: bool  # torch.Tensor or Parameter, no other subclass, and no lazily negated view
    grad_scale: float | Tensor  # multiplied into every gradient as it is loaded
    rounding: Rounding | None  # None: to nearest
    members: Members
    backend: Backend = field(init=False)
    turn: int = 0  # buckets are run in this order: the one that is complete first comes first
    prepared: Any = None  # what ``Backend.prepare`` made for this step
    scratch: dict[Any, Any] = field(default_factory=dict)  # what a backend keeps between steps

    def parts_of(self, index: int) -> list[list[Tensor]]:
        """The tensors of each state of tensor ``index``."""
        every = iter(self.states)
        return [[next(every)[index] for _ in form.parts] for form in self.formats]

    @property
    def row_counts(self) -> list[int]:
        """The number of local rows per tensor; see ``ingot.reductions.rows``."""
        if not self.variant.spec.rows:
            return [1] * len(self.params)
        return [
            param.shape[0] if len(shape) > 1 else 1
            for param, shape in zip(self.params, self.shapes, strict=True)
        ]
