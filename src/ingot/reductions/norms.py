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


class Norm(NamedTuple):
    """A norm as a step leaves it; converting it for users would be one more operator, so that waits until they ask."""

    value: Tensor | float
    dtype: torch.dtype  # in which users get it


class Whole(NamedTuple):
    """All parameters of an optimizer, and the process group whose members have the rest of the same model."""

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
) -> Norm:
    """Multiply the clip coefficients that groups want into ``bucket.grad_scale``; gradients stay as they are.

    Args:
        everything: the parameters of the optimizer.
        wanted: the clippings of each group.
        buckets: the step.

    Returns:
        The norm of all gradients, unscaled, before clipping.
    """
    parts = bucket_parts(everything, buckets)
    scale = magnitude(buckets[0].grad_scale) if buckets else 1.0
    whole = norm_of(joined(list(parts.values())))
    for bucket in buckets:
        group, dtype = bucket.members.group, bucket.members.dtype
        for clip in wanted[group]:
            every = clip.scope == "all" or len(parts) == 1
            norm = whole if every else norm_of(parts[group, dtype])
            bucket.grad_scale = clipped(bucket.grad_scale, clip, norm)
            if isinstance(bucket.grad_scale, Tensor):
                bucket.grad_scale = bucket.grad_scale.to(bucket.params[0].device)
    return Norm(scaled(whole, scale), norm_dtype(bucket.grads[0] for bucket in buckets))


def scaled(number: Tensor | float, scale: Tensor | float) -> Tensor | float:
    """A product; the usual scale of 1 costs no operator."""
    return number if isinstance(scale, float) and scale == 1.0 else number * scale


def root(squares: Tensor | float) -> Tensor | float:
    """The norm of some squares."""
    return squares.sqrt() if isinstance(squares, Tensor) else math.sqrt(squares)


def clipped(scale: Tensor | float, clip: Clip, norm: Tensor | float) -> Tensor | float:
    """A scale of gradients times the clip coefficient for their norm; a norm of NaN makes it NaN."""
    denom = scaled(norm, magnitude(scale)) + clip.slack
    if isinstance(denom, Tensor):
        if isinstance(scale, Tensor):
            factor = torch.clamp(clip.max_norm / denom, max=1.0)
            return factor.to(scale.device) * scale
        # A number on the CPU divides without a launch of its own: ``max_norm / denom`` would be two operators. The
        # limit takes the sign of the scale, so that ``maximize`` costs no operator either.
        dividend = torch.tensor(clip.max_norm * scale, dtype=denom.dtype, device="cpu")
        quotient = torch.div(dividend, denom)
        return quotient.clamp(max=scale) if scale >= 0 else quotient.clamp(min=scale)
    value = clip.max_norm / denom if denom else math.inf
    return (1.0 if value > 1.0 else value) * scale


def bucket_parts(everything: Whole, buckets: Sequence[Bucket]) -> dict[Scope, Tensor | float]:
    """What the norms of the gradients of a step are made of, per group and dtype; see ``joined``."""
    if everything.norm_group is not None or everything.roster.sharded:
        members = [(b.members.ordinals, b.backend.gradients(b)) for b in buckets]
        pairs = [pair for each in members for pair in zip(*each, strict=True)]
        sums = everything.sums(dict(pairs), backends.squares)
        return {scope: squares.sqrt().reshape(1) for scope, squares in sums.items()}
    parts: dict[Scope, list[Tensor | float]] = {}
    for bucket in buckets:
        value = bucket.backend.grad_norms(bucket)
        parts.setdefault((bucket.members.group, bucket.members.dtype), []).append(value)
    return {scope: joined(values) for scope, values in parts.items()}


def joined(parts: Sequence[Tensor | float]) -> Tensor | float:
    """Several parts of a norm as one: a vector of norms, or the sum of squares as a plain number.

    Plain numbers are added from left to right, as the core does on the quick path. A single part, the usual case, costs
    no operator.
    """
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        return sum(part for part in parts if not isinstance(part, Tensor))
    if len(parts) == 1:
        return tensors[0]
    vectors = (part if isinstance(part, Tensor) else as_vector(math.sqrt(part)) for part in parts)
    return torch.cat([vector.to(tensors[0]) for vector in vectors])


def as_vector(norm: float) -> Tensor:
    """One norm as a vector of one, with all its digits."""
    return torch.tensor([norm], dtype=torch.float64, device="cpu")


def norm_of(part: Tensor | float) -> Tensor | float:
    """The norm of all that a part stands for; see ``joined``."""
    return torch.linalg.vector_norm(part) if isinstance(part, Tensor) else math.sqrt(part)


def added(values: Sequence[Tensor]) -> Tensor | float:
    """The sum of some 0-dim tensors; a single one, the usual case, costs no operator."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return torch.stack([value.to(values[0]) for value in values]).sum()


def magnitude(scale: float | Tensor) -> float | Tensor:
    """The scale without the sign that ``maximize`` gives it."""
    return scale.abs() if isinstance(scale, Tensor) else abs(scale)


def clip_in_place(everything: Whole, max_norm: float, norm_type: float | str) -> Tensor:
    """Scale ``.grad`` of all parameters so that their common norm is at most ``max_norm``; return the norm."""
    owner = everything.roster.owner
    MAX_NORM.check(owner, "max_norm", max_norm)
    norm_type = math.inf if norm_type == "inf" else norm_type  # as torch spells it, too
    NORM_TYPE.check(owner, "norm_type", norm_type)
    max_norm, norm_type = float(max_norm), float(norm_type)
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
        if grad.is_meta:
            raise RuntimeError(
                f"{owner}: parameter {ordinal}: a meta gradient has no values to clip"
            )
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
    return reported(total, norm_dtype(grads.values()))


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


def reported(norm: Tensor | float, dtype: torch.dtype) -> Tensor:
    """A norm as users get it."""
    if isinstance(norm, Tensor):
        return norm.to(dtype)
    return torch.tensor(norm, dtype=dtype, device="cpu")


def norm_dtype(grads: Iterable[Tensor]) -> torch.dtype:
    """The type of the math of some gradients: float64 if one has that type."""
    wide = any(grad.dtype is torch.float64 for grad in grads)
    return torch.float64 if wide else torch.float32
