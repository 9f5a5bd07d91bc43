"""Gradient norms over a whole optimizer: clipping inside the step and clipping in place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot import backends
from ingot.declare.options import Rule, real
from ingot.declare.spec import Clip
from ingot.sharding import dtensor
from ingot.sharding.collectives import Measure, Scope, gradient_sums, largest_gradient
from ingot.step.bucket import Bucket
from ingot.step.roster import Roster
from ingot.step.survey import local_real

MAX_NORM = Rule("max_norm value", lambda x: real(x) >= 0, "a number >= 0")
NORM_TYPE = Rule("norm_type value", lambda x: real(x) > 0, "a number > 0, or math.inf")


class Whole(NamedTuple):
    """All gradients of an optimizer, and who has others of the same model."""

    roster: Roster
    params: Sequence[Tensor]
    norm_group: Any  # see ``FusedOptimizer.norm_group``

    def sums(
        self, grads: Mapping[int, Tensor], measure: Measure, failed: bool = False
    ) -> dict[Scope, Tensor]:
        """Sums of ``measure`` over local gradients, by the number of their parameter, per group and dtype."""
        dtypes = (param.dtype for param in self.params)
        scopes = [*zip(self.roster.group_of, dtypes, strict=True)]
        return gradient_sums(self.roster, scopes, self.norm_group, grads, measure, failed)


def clip_in_step(
    everything: Whole, wanted: Sequence[tuple[Clip, ...]], buckets: Sequence[Bucket]
) -> Tensor:
    """Multiply the clip coefficients that groups want into ``bucket.grad_scale``; gradients stay as they are.

    Args:
        everything: the parameters of the optimizer.
        wanted: the clippings of each group.
        buckets: the step.

    Returns:
        The norm of all gradients, unscaled, before clipping.
    """
    squares = bucket_sums(everything, buckets)
    scale = magnitude(buckets[0].grad_scale) if buckets else 1.0
    whole = root(added(list(squares.values())))
    for bucket in buckets:
        group, dtype = bucket.members.group, bucket.members.dtype
        for clip in wanted[group]:
            every = clip.scope == "all" or len(squares) == 1
            norm = whole if every else root(squares[group, dtype])
            factor = coefficient(clip, scaled(norm, magnitude(bucket.grad_scale)))
            if isinstance(factor, Tensor):
                factor = factor.to(bucket.params[0].device)
            bucket.grad_scale = scaled(factor, bucket.grad_scale)
    return reported(scaled(whole, scale), [bucket.grads[0] for bucket in buckets])


def scaled(number: Tensor | float, scale: Tensor | float) -> Tensor | float:
    """A product; the usual scale of 1 costs no operator."""
    return number if isinstance(scale, float) and scale == 1.0 else number * scale


def root(squares: Tensor | float) -> Tensor | float:
    """The norm of some squares."""
    return squares.sqrt() if isinstance(squares, Tensor) else math.sqrt(squares)


def coefficient(clip: Clip, norm: Tensor | float) -> Tensor | float:
    """What gradients of a norm are multiplied with; a norm of NaN makes it NaN."""
    if isinstance(norm, Tensor):
        return torch.clamp(clip.max_norm / (norm + clip.slack), max=1.0)
    value = clip.max_norm / (norm + clip.slack) if norm + clip.slack else math.inf
    return 1.0 if value > 1.0 else value


def bucket_sums(everything: Whole, buckets: Sequence[Bucket]) -> dict[Scope, Tensor | float]:
    """Sums of squares of the gradients of a step, per group and dtype, complete across processes."""
    if everything.norm_group is not None or everything.roster.sharded:
        members = [(b.members.ordinals, b.backend.gradients(b)) for b in buckets]
        pairs = [pair for each in members for pair in zip(*each, strict=True)]
        return {**everything.sums(dict(pairs), backends.squares)}
    sums: dict[Scope, list[Tensor | float]] = {}
    for bucket in buckets:
        value = bucket.backend.grad_squares(bucket)
        sums.setdefault((bucket.members.group, bucket.members.dtype), []).append(value)
    return {scope: added(values) for scope, values in sums.items()}


def added(values: Sequence[Tensor | float]) -> Tensor | float:
    """The sum of some numbers; a single one, the usual case, costs no operator.

    Plain numbers are added from left to right, as the core does on the quick path.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return sum(value for value in values if not isinstance(value, Tensor))
    if len(values) == 1:
        return tensors[0]
    return torch.stack([torch.as_tensor(value).to(tensors[0]) for value in values]).sum()


def magnitude(scale: float | Tensor) -> float | Tensor:
    """The scale without the sign that ``maximize`` gives it."""
    return scale.abs() if isinstance(scale, Tensor) else abs(scale)


def clip_in_place(everything: Whole, max_norm: float, norm_type: float) -> Tensor:
    """Scale ``.grad`` of all parameters so that their common norm is at most ``max_norm``; return the norm."""
    owner = everything.roster.owner
    MAX_NORM.check(owner, "max_norm", max_norm)
    NORM_TYPE.check(owner, "norm_type", norm_type)
    try:
        grads = gradients(everything)
    except RuntimeError:
        with contextlib.suppress(RuntimeError):  # processes that would wait for this one are told
            total_norm(everything, {}, norm_type, failed=True)
        raise
    norm = total_norm(everything, grads, norm_type)
    if grads:
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        # Elsewhere than on the CPU, looking at the coefficient takes longer than multiplying by 1.
        if norm.device.type != "cpu" or coefficient != 1.0:
            backends.scale_([local_real(grad) for grad in grads.values()], coefficient)
    return norm


def gradients(everything: Whole) -> dict[int, Tensor]:
    """The gradients to clip, by the number of their parameter."""
    owner = everything.roster.owner
    grads: dict[int, Tensor] = {}
    for ordinal, param in enumerate(everything.params):
        grad: Any = param.grad
        if grad is None:
            continue
        if grad.layout is not torch.strided:
            raise RuntimeError(f"{owner} does not support sparse gradients")
        dtensor.check(f"{owner}: gradient to clip", param, grad)
        grads[ordinal] = grad
    return grads


def total_norm(
    everything: Whole, grads: Mapping[int, Tensor], norm_type: float, failed: bool = False
) -> Tensor:
    """The norm of all gradients as one vector, over all shards."""
    if norm_type == 2:
        grads = {ordinal: local_real(grad) for ordinal, grad in grads.items()}
        total = root(added([*everything.sums(grads, backends.squares, failed).values()]))
    else:
        # The magnitude of a complex number is not that of its parts.
        local = {ordinal: dtensor.local(grad) for ordinal, grad in grads.items()}
        grads = {i: grad.abs() if grad.is_complex() else grad for i, grad in local.items()}
        total = other_norm(everything, grads, norm_type, failed)
    return reported(total, grads.values())


def other_norm(
    everything: Whole, grads: Mapping[int, Tensor], norm_type: float, failed: bool
) -> Tensor | float:
    """Norms other than the 2-norm, tensor by tensor; none of them is on a hot path but the maximum."""
    if norm_type == torch.inf:
        here = backends.largest(list(grads.values()))
        return largest_gradient(everything.roster, everything.norm_group, here, grads, failed)

    def power(tensors: Sequence[Tensor]) -> Tensor:
        norms = [
            torch.linalg.vector_norm(tensor, norm_type, dtype=dtensor.sum_dtype(tensor))
            for tensor in tensors
        ]
        return (torch.stack([norm.to(norms[0]) for norm in norms]) ** norm_type).sum()

    return added([*everything.sums(grads, power, failed).values()]) ** (1 / norm_type)


def reported(norm: Tensor | float, grads: Iterable[Tensor]) -> Tensor:
    """A norm as users get it."""
    if isinstance(norm, Tensor):
        return norm.to(norm_dtype(grads))
    return torch.tensor(norm, dtype=norm_dtype(grads), device="cpu")


def norm_dtype(grads: Iterable[Tensor]) -> torch.dtype:
    """The type of the math of some gradients: float64 if one has that type."""
    wide = any(grad.dtype is torch.float64 for grad in grads)
    return torch.float64 if wide else torch.float32
