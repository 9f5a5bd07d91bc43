"""The last plan, as a guess about the next: checked against every tensor, dropped at the first difference.

Surveying 1000 parameters in Python takes milliseconds, updating them natively a tenth of one. So a plan made of
plain CPU tensors is remembered. What it rests on is read again every step, in C: which parameters there are, their
gradients, their state dictionaries and what is in them; types, shapes, devices and addresses of all those
tensors. Nothing is taken from memory that could have changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.backends.native import NATIVE
from ingot.sharding.dtensor import Specs, local
from ingot.storage.precision import MASTER

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer
    from ingot.step.plan import Bucket


@dataclass(frozen=True)
class Recollection:
    """A plan and what it was made from."""

    settings: Any
    params: list[Tensor]
    idle: list[Tensor]  # parameters that had no gradient
    owners: list[Any]  # keys of optimizer.state
    slots: list[Any]  # its values
    buckets: list[Bucket]
    specs: list[Specs | None]  # per bucket, how its DTensors are laid out

    @staticmethod
    def of(optimizer: FusedOptimizer, buckets: list[Bucket]) -> Recollection | None:
        """Remember a plan, if it is worth it; called before the step, so new states are not there yet."""
        for bucket in buckets:
            whole = all(map(is_, bucket.params, map(local, bucket.owners)))
            if bucket.backend.name != "native" or not whole or any(bucket.fresh):
                return None
        params = optimizer.all_params()
        idle = [param for param in params if param.grad is None]
        state = optimizer.state
        settings = settings_of(optimizer)
        specs = [Specs.of(bucket.owners) for bucket in buckets]
        outlines = [outline(bucket) for bucket in buckets]
        return Recollection(
            settings, params, idle, list(state), list(state.values()), outlines, specs
        )

    def again(self, optimizer: FusedOptimizer) -> list[Bucket] | None:
        """The same buckets with the tensors of now; None where anything differs."""
        if not (
            self.settings == settings_of(optimizer)
            and NATIVE.identical(self.params, optimizer.all_params())
            and NATIVE.identical(self.owners, list(optimizer.state))
            and NATIVE.identical(self.slots, list(optimizer.state.values()))
            and all(param.grad is None for param in self.idle)
        ):
            return None
        buckets = []
        for old, specs in zip(self.buckets, self.specs, strict=True):
            bucket = renewed(optimizer, old, specs)
            if bucket is None or bucket.backend.prepare(bucket) is not None:
                return None
            buckets.append(bucket)
        return buckets


def outline(bucket: Bucket) -> Bucket:
    """A bucket without the tensors of one step: gradients live as long as their owner wants, not longer."""
    masters: list[Tensor] | None = None if bucket.masters is None else []
    result = replace(bucket, grads=[], states=[], masters=masters, table=None)
    result.backend = bucket.backend
    return result


def renewed(optimizer: FusedOptimizer, old: Bucket, specs: Specs | None) -> Bucket | None:
    """A bucket with the gradients, states and step of now."""
    group = optimizer.param_groups[old.group]
    variant, dtype = optimizer.spec.variant(group), old.owners[0].dtype
    names = (*variant.states, *(() if old.masters is None else (MASTER,)))
    if variant is not old.variant or dtype is not old.dtype:
        return None
    counted = variant.spec.counted or old.rounding is not None
    gathered = NATIVE.gather(old.owners, old.slots, names, counted)
    if gathered is None:
        return None
    step, grads, states = gathered
    params = old.params
    if specs is not None:
        lists = [specs.parts(tensors) for tensors in (old.owners, grads, *states)]
        if any(parts is None for parts in lists):
            return None
        params, grads, *states = lists  # type: ignore[assignment]
    wanted = [torch.float32 if n == MASTER else optimizer.precision.stored(dtype) for n in names]
    found = [getattr(tensors[0], "dtype", None) for tensors in states]
    if any(dtype is not want for dtype, want in zip(found, wanted, strict=True)):
        return None
    step += 1
    bucket = replace(
        old,
        scalars=optimizer.spec.numbers(group, step if variant.spec.counted else 2),
        step=step,
        params=params,
        grads=grads,
        states=states[: len(variant.states)],
        fresh=[],
        masters=None if old.masters is None else states[-1],
        grad_scale=-1.0 if group["maximize"] else 1.0,
        rounding=old.rounding and replace(old.rounding, seed=group["rounding_seed"], step=step),
    )
    bucket.backend = old.backend
    return bucket


def settings_of(optimizer: FusedOptimizer) -> Any:
    """What decides about buckets beside tensors and options: how groups are cut, and the optimizer's own settings."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return sizes, optimizer.backend, optimizer.precision
