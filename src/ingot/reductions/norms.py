"""Gradient norms over a whole optimizer, clipping inside the step and clipping in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot import backends
from ingot.declare.options import Rule, real
from ingot.sharding import collectives as exchange
from ingot.sharding import dtensor as shards
from ingot.sharding.collectives import Scope
from ingot.step.plan import operand

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer
    from ingot.step.plan import Bucket

MAX_NORM = Rule("max_norm value", lambda x: real(x) >= 0, "a number >= 0")
NORM_TYPE = Rule("norm_type value", lambda x: real(x) > 0, "a number > 0, or math.inf")


def unscale(buckets: Sequence[Bucket], scale: Tensor | float | None) -> None:
    """Divide ``bucket.grad_scale`` by the scale of a GradScaler, which stays on its device: nobody waits for it."""
    if scale is None:
        return
    if not isinstance(scale, Tensor) or scale.device.type == "cpu":
        scale = float(scale)
    for bucket in buckets:
        factor = scale
        if isinstance(factor, Tensor):
            factor = factor.reshape(()).to(bucket.params[0].device, non_blocking=True)
        bucket.grad_scale = bucket.grad_scale / factor


def clip_in_step(optimizer: FusedOptimizer, buckets: Sequence[Bucket]) -> Tensor | None:
    """Multiply the clip coefficients the groups ask for into ``bucket.grad_scale``; gradients stay as they are.

    Returns:
        The norm of all gradients, unscaled, before clipping; None if no group clips.
    """
    wanted = [optimizer.spec.clips(group) for group in optimizer.param_groups]
    if not any(wanted):
        return None
    squares = bucket_sums(optimizer, buckets)
    scale = magnitude(buckets[0].grad_scale) if buckets else 1.0
    whole = added(list(squares.values())).sqrt()
    for bucket in buckets:
        for clip in wanted[bucket.group]:
            everything = clip.scope == "all"
            root = whole if everything else squares[bucket.group, bucket.owners[0].dtype].sqrt()
            norm = root * magnitude(bucket.grad_scale)
            coefficient = torch.clamp(clip.max_norm / (norm + clip.slack), max=1.0)
            bucket.grad_scale = bucket.grad_scale * coefficient.to(bucket.params[0].device)
    return reported(whole * scale, [bucket.grads[0] for bucket in buckets])


def bucket_sums(optimizer: FusedOptimizer, buckets: Sequence[Bucket]) -> dict[Scope, Tensor]:
    """Sums of squares of the gradients of a step, per group and dtype, complete across processes."""
    if optimizer.norm_group is not None or optimizer.is_sharded():
        pairs = [pair for each in buckets for pair in zip(each.ordinals, each.grads, strict=True)]
        return scope_sums(optimizer, dict(pairs))
    sums: dict[Scope, list[Tensor]] = {}
    for bucket in buckets:
        value = backends.grad_squares(bucket)
        home = next(iter(sums.values()), [value])[0]
        sums.setdefault((bucket.group, bucket.dtype), []).append(value.to(home))
    return {scope: added(values) for scope, values in sums.items()}


def added(values: Sequence[Tensor]) -> Tensor:
    """The sum of some 0-dim tensors; a single one, the usual case, costs no operator."""
    if len(values) == 1:
        return values[0]
    return torch.stack(list(values)).sum() if values else torch.zeros((), device="cpu")


def magnitude(scale: float | Tensor) -> float | Tensor:
    """The scale without the sign that ``maximize`` gives it."""
    return scale.abs() if isinstance(scale, Tensor) else abs(scale)


def scope_sums(optimizer: FusedOptimizer, grads: Mapping[int, Tensor]) -> dict[Scope, Tensor]:
    """Sums of squares over all shards, per group and dtype; ``grads`` by the number of their parameter."""
    return exchange.gradient_sums(optimizer, grads, backends.squares)


def numbered(optimizer: FusedOptimizer) -> list[tuple[int, Tensor]]:
    """All parameters in order, each with the number of its group."""
    return [
        (number, param)
        for number, group in enumerate(optimizer.param_groups)
        for param in group["params"]
    ]


def clip_in_place(optimizer: FusedOptimizer, max_norm: float, norm_type: float) -> Tensor:
    """Scale ``.grad`` of all parameters so that their common norm is at most ``max_norm``; return the norm."""
    name = type(optimizer).__name__
    MAX_NORM.check(name, "max_norm", max_norm)
    NORM_TYPE.check(name, "norm_type", norm_type)
    grads: dict[int, Tensor] = {}
    for ordinal, (_, param) in enumerate(numbered(optimizer)):
        grad: Any = param.grad
        if grad is None:
            continue
        if grad.layout is not torch.strided:
            raise RuntimeError(f"{name} does not support sparse gradients")
        shards.check(f"{name}: gradient to clip", param, grad)
        grads[ordinal] = grad
    norm = total_norm(optimizer, grads, norm_type)
    if grads:
        coefficient = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        # Elsewhere than on the CPU, looking at the coefficient takes longer than multiplying by 1.
        if norm.device.type != "cpu" or coefficient != 1.0:
            backends.scale_([operand(grad) for grad in grads.values()], coefficient)
    return norm


def total_norm(optimizer: FusedOptimizer, grads: Mapping[int, Tensor], norm_type: float) -> Tensor:
    """The norm of all gradients as one vector, over all shards."""
    if norm_type == 2:
        grads = {ordinal: operand(grad) for ordinal, grad in grads.items()}
        sums = list(scope_sums(optimizer, grads).values())
        total = torch.stack(sums).sum().sqrt() if sums else torch.zeros((), device="cpu")
    else:
        # The magnitude of a complex number is not that of its parts.
        local = {ordinal: shards.local(grad) for ordinal, grad in grads.items()}
        grads = {i: grad.abs() if grad.is_complex() else grad for i, grad in local.items()}
        total = other_norm(optimizer, grads, norm_type)
    return reported(total, grads.values())


def reported(norm: Tensor, grads: Iterable[Tensor]) -> Tensor:
    """A norm in the type of the math of the gradients, float64 if there is one of that type."""
    wide = any(grad.dtype is torch.float64 for grad in grads)
    return norm.to(torch.float64 if wide else torch.float32)


def other_norm(optimizer: FusedOptimizer, grads: Mapping[int, Tensor], norm_type: float) -> Tensor:
    """Norms other than the 2-norm, tensor by tensor; none of them is on a hot path but the maximum."""
    if norm_type == torch.inf:
        return exchange.largest_gradient(optimizer, backends.largest(list(grads.values())), grads)

    def power(tensors: Sequence[Tensor]) -> Tensor:
        norms = [
            torch.linalg.vector_norm(tensor, norm_type, dtype=shards.sum_dtype(tensor))
            for tensor in tensors
        ]
        return (torch.stack([norm.to(norms[0]) for norm in norms]) ** norm_type).sum()

    sums = list(exchange.gradient_sums(optimizer, grads, power).values())
    total = torch.stack(sums).sum() if sums else torch.zeros((), device="cpu")
    return total ** (1 / norm_type)
