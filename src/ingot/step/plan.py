"""Param groups to buckets: lists of plain local tensors that one backend call updates."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ingot import backends
from ingot.declare.spec import Variant
from ingot.sharding import dtensor as shards
from ingot.step.recollection import Recollection
from ingot.step.refuse import Place, Slots, check, places, prepared_states, resolved
from ingot.storage.precision import MASTER
from ingot.storage.rounding import Rounding

if TYPE_CHECKING:
    from ingot.backends import Backend
    from ingot.optimizer import FusedOptimizer


@dataclass(eq=False)
class Bucket:
    """Tensors of one group that share device, types and step: the unit of work of a backend.

    ``params``, ``grads`` and ``states`` are local and real: the shard of a DTensor, the real view of a complex
    tensor. ``states[k][i]`` is state ``k`` of tensor ``i``, in the order of ``variant.states``.
    """

    variant: Variant
    group: int
    scalars: Any
    step: int
    dtype: torch.dtype  # of the owners
    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: list[list[Tensor]] = field(default_factory=list)
    masters: list[Tensor] | None = None
    owners: list[Tensor] = field(default_factory=list)  # the user's parameters
    ordinals: list[int] = field(default_factory=list)  # their numbers in the optimizer
    slots: list[Slots] = field(default_factory=list)  # their entries in optimizer.state
    # What the step adds to those entries; an empty list: nothing.
    fresh: list[Slots] = field(default_factory=list)
    grad_scale: float | Tensor = 1.0  # multiplied into every gradient as it is loaded
    rounding: Rounding | None = None  # None: to nearest
    plain: bool = True  # torch.Tensor or Parameter, not some other subclass
    sharded: bool = False
    dtensors: bool = False  # some of the owners are
    backend: Backend = field(init=False)
    table: Any = None  # the native backend's view of these tensors, valid for this step
    memory: dict[Any, Any] = field(default_factory=dict)  # what a backend keeps between steps

    def commit(self, state: MutableMapping[Tensor, Slots]) -> None:
        """Write step counts and new states into the optimizer's state; nothing can fail any more."""
        counted = self.variant.spec.counted or self.rounding is not None
        if counted:
            for slots in self.slots:
                slots["step"] = self.step
        for owner, slots, fresh in zip(self.owners, self.slots, self.fresh, strict=False):
            slots.update(fresh)
            if slots and owner not in state:
                state[owner] = slots


class Planner:
    """Plans the steps of one optimizer."""

    def __init__(self, optimizer: FusedOptimizer) -> None:
        self.optimizer = optimizer
        self.memories: dict[Any, dict[Any, Any]] = {}
        self.last: Recollection | None = None

    def plan(self) -> list[Bucket]:
        """The buckets of this step, each with its backend. Raises before anything is changed."""
        buckets = self.last.again(self.optimizer) if self.last is not None else None
        if buckets is None:
            buckets = self._survey()
            self.last = Recollection.of(self.optimizer, buckets)
        return buckets

    def _survey(self) -> list[Bucket]:
        """Look at every parameter."""
        buckets: dict[Any, Bucket] = {}
        for place, group, param in places(self.optimizer):
            check(place, param, param.grad)  # type: ignore[arg-type]
            self._add(buckets, place, group, param)
        memories = self.memories
        self.memories = {}
        for (_, *key), bucket in buckets.items():
            bucket.memory = self.memories.setdefault(tuple(key), memories.get(tuple(key), {}))
            bucket.backend = backends.choose(bucket, self.optimizer.backend)
        return list(buckets.values())

    def _add(
        self, buckets: dict[Any, Bucket], place: Place, group: Mapping[str, Any], param: Tensor
    ) -> None:
        """Put one parameter into the bucket it belongs to."""
        spec, precision = self.optimizer.spec, self.optimizer.precision
        variant = spec.variant(group)
        slots = self.optimizer.state.get(param, {})
        states = prepared_states(place, variant, precision, param, slots)
        step, formula_step = next_step(variant, slots)
        grad = param.grad
        assert grad is not None
        plain = is_plain(param) and is_plain(grad)
        sharded = variant.two_pass and shards.is_sharded(param)
        kind = (place.group, variant, param.device, param.dtype, grad.dtype, plain, sharded)
        key = ((step, formula_step), *kind)
        if key not in buckets:
            buckets[key] = Bucket(
                variant,
                place.group,
                spec.numbers(group, formula_step),
                step,
                param.dtype,
                states=[[] for _ in variant.states],
                masters=[] if MASTER in states else None,
                rounding=Rounding.of(
                    precision, param.dtype, group["rounding_seed"], step, 1 + len(variant.states)
                ),
                grad_scale=-1.0 if group["maximize"] else 1.0,
                plain=plain,
                sharded=sharded,
            )
        bucket = buckets[key]
        bucket.params.append(operand(param))
        bucket.grads.append(operand(resolved(grad)))
        for tensors, name in zip(bucket.states, variant.states, strict=True):
            tensors.append(operand(states[name]))
        if bucket.masters is not None:
            bucket.masters.append(operand(states[MASTER]))
        if bucket.rounding is not None:
            bucket.rounding.add(place.ordinal, param)
        bucket.owners.append(param)
        bucket.dtensors |= shards.is_dtensor(param)
        bucket.ordinals.append(place.ordinal)
        bucket.slots.append(slots)
        bucket.fresh.append({k: v for k, v in states.items() if v is not slots.get(k)})


def next_step(variant: Variant, slots: Slots) -> tuple[int, int]:
    """The number of the step about to be made, and what the formula is told of it.

    They differ for optimizers without a counter, whose formula only tells the first step from later ones.
    """
    step = int(slots.get("step", 0)) + 1
    if variant.spec.counted:
        return step, step
    return step, 1 if any(slots.get(name) is None for name in variant.states) else 2


def is_plain(tensor: Tensor) -> bool:
    """Whether a backend may treat the tensor as a block of numbers."""
    return type(shards.local(tensor)) in (Tensor, Parameter)


def operand(tensor: Tensor) -> Tensor:
    """What a backend gets to see of a tensor: its local part, real. Of a conjugated view, the memory behind it."""
    tensor = shards.local(tensor)
    if not tensor.is_complex():
        return tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
