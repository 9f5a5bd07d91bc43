"""Buckets made by hand, so that the native core can be compared with the reference backend one call at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ingot import optim
from ingot.backends import REFERENCE
from ingot.backends.native import NATIVE
from ingot.step.bucket import Bucket, Members
from ingot.storage import blockwise8
from ingot.storage.floats import floats
from ingot.storage.format import Format
from ingot.storage.precision import math_dtype

# Numbers that make every term of every formula count.
OPTIONS = {
    "lr": 0.05,
    "betas": (0.9, 0.99),
    "eps": 1e-3,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "dampening": 0.25,
    "bias_correction": True,
    "max_weight_norm": 3.0,
    "delta": 0.1,
    "wd_ratio": 0.1,
    "b1": 0.9,
    "b2": 0.99,
    "e": 1e-3,
    "warmup": -1,
    "t_total": -1,
    "schedule": "warmup_linear",
    "rho": 0.9,
    "alpha": 0.9,
    "lr_in_momentum": True,
}


def variants() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every class with every combination of the options that change its formula, by the name of the variant."""
    found = {}
    for name in optim.__all__:
        kind = getattr(optim, name)
        flags = [flag for flag in kind.spec.flags if flag in kind.rules]
        for values in itertools.product((False, True), repeat=len(flags)):
            chosen = {
                f: OPTIONS.get(f, True) if on else 0 for f, on in zip(flags, values, strict=True)
            }
            found[kind.spec.variant(chosen).name] = (kind, chosen)
    return found


VARIANTS = variants()
# States with a root in their formula, where torch's root in float64 may differ in its last bit, and the least magnitude
# at which distances between neighbouring numbers are taken: a buffer is a sum of numbers of either sign.
ROOTED = {
    ("adadelta", "acc_delta"): 0.0,
    ("rmsprop", "momentum_buffer"): 1.0,
    ("rmsprop_tf", "momentum_buffer"): 1.0,
}
# k*W - 1, k*W, k*W + 1 for vectors of 4, 8, 16 and 64 lanes and tiles of 1024; short, long and single rows; nothing.
SHAPES: list[tuple[int, ...]] = [
    *((n,) for w in (4, 8, 16, 64, 1024) for n in (w - 1, w, w + 1)),
    *((3, n) for n in (63, 64, 65, 1025)),
    *((), (0,), (0, 4), (4, 0), (1, 9), (130, 8), (515, 9), (2, 2, 3, 3), (1025, 1)),
]


def make_bucket(
    name: str,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    state_dtype: torch.dtype | str | None = None,
    masters: bool = False,
) -> Bucket:
    """A bucket of given parameters and gradients with states as they start."""
    kind, flags = VARIANTS[name]
    group = {**OPTIONS, "decoupled_decay": False, **flags}
    variant = kind.spec.variant(group)
    assert variant.name == name
    forms: list[Format] = [
        blockwise8.SIGNED if kind.spec.states[state].signed else blockwise8.UNSIGNED
        for state in variant.states
    ]
    if state_dtype != "8bit":
        assert not isinstance(state_dtype, str)
        forms = [floats(state_dtype or math_dtype(params[0].dtype))] * len(forms)
    starts = [kind.spec.states[state].start for state in variant.states]
    made = [[form.new(p, start) for p in params] for form, start in zip(forms, starts, strict=True)]
    return Bucket(
        variant,
        scalars=kind.spec.scalars(group, 3),
        params=list(params),
        grads=list(grads),
        states=[[*part] for tensors in made for part in zip(*tensors, strict=True)],
        formats=tuple(forms),
        masters=[p.float() for p in params] if masters else None,
        shapes=[p.shape for p in params],
        inner_dims=0,
        plain=True,
        grad_scale=0.5,
        rounding=None,
        members=Members(0, 3, True, False, params[0].dtype, list(params), [], [], []),
    )


def copy_bucket(bucket: Bucket, clone: Callable[[Tensor], Tensor] = torch.clone) -> Bucket:
    """The same bucket in other memory; ``clone`` decides the layout."""
    masters = bucket.masters
    return replace(
        bucket,
        params=[clone(t) for t in bucket.params],
        grads=[clone(t) for t in bucket.grads],
        states=[[clone(t) for t in state] for state in bucket.states],
        masters=None if masters is None else [clone(t) for t in masters],
        scratch={},
    )


def run_native(bucket: Bucket) -> None:
    """Prepare and run; a refusal is a failure."""
    assert NATIVE.unavailable() is None
    assert NATIVE.prepare(bucket) is None
    NATIVE.run(bucket)


def run_reference(bucket: Bucket) -> None:
    """The same with the reference backend."""
    assert REFERENCE.prepare(bucket) is None
    REFERENCE.run(bucket)


def new_grads(bucket: Bucket, seed: int) -> None:
    """Other gradients in the same memory."""
    generator = torch.Generator().manual_seed(seed)
    for grad in bucket.grads:
        grad.copy_(torch.randn(grad.shape, generator=generator))


def random_bucket(
    name: str,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float32,
    grad_dtype: torch.dtype | None = None,
    state_dtype: torch.dtype | str | None = None,
    masters: bool = False,
) -> Bucket:
    """A bucket of normally distributed parameters and gradients."""
    generator = torch.Generator().manual_seed(5)
    params = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    grads = [torch.randn(s, generator=generator).to(grad_dtype or dtype) for s in shapes]
    return make_bucket(name, params, grads, state_dtype, masters)


def spacing(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of each value to the next in ``dtype``, as float64."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(tensor.double().abs().clamp_min(info.tiny))
    return info.eps / 2 * torch.exp2(exponent.double())


def assert_params_near(ours: Bucket, expected: Bucket, units: float) -> None:
    """Equal bit for bit; within ``units`` distances between neighbouring numbers where that cannot be.

    Two backends add up the sums of LAMB and AdamP in other orders, and torch's root in float64 is not correctly
    rounded. The update may be larger than the parameter it is subtracted from, so the distance is taken at 1 at least.
    """
    if not ours.variant.two_pass and ours.params[0].dtype is not torch.float64:
        units = 0
    for one, other in zip(ours.params, expected.params, strict=True):
        difference = (one.double() - other.double()).abs()
        limit = units * spacing(other.abs().clamp_min(1), other.dtype)
        assert bool((difference <= limit).all()), float((difference / limit).max())


def assert_states_equal(ours: Bucket, expected: Bucket) -> None:
    """States equal bit for bit, but for the last bits of those made with a root in float64."""
    names = zip(ours.variant.states, ours.states, expected.states, strict=True)
    in_double = ours.params[0].dtype is torch.float64
    for name, one, other in names:
        rooted = in_double and (ours.variant.spec.name, name) in ROOTED
        for state, wanted in zip(one, other, strict=True):
            if not rooted:
                assert torch.equal(state, wanted), name
                continue
            difference = (state.double() - wanted.double()).abs()
            limit = 8 * spacing(
                wanted.abs().clamp_min(ROOTED[ours.variant.spec.name, name]), state.dtype
            )
            assert bool((difference <= limit).all()), name
