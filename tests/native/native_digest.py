"""Prints a digest of what the native core computes, per number of threads; run under each instruction set."""

from __future__ import annotations

import hashlib
import itertools
import sys

import torch
from native_buckets import SHAPES, copy_bucket, new_grads, random_bucket

from ingot.backends.native import NATIVE, core
from ingot.storage.rounding import Rounding

LARGE = [(2, 70000), (140001,), (9000, 9), (2000, 65), (300, 256)]
NAMES = [
    "adamw_amsgrad",
    "sgd_momentum_nesterov_weight_decay",
    "lamb_weight_decay",
    "adamp",
    "adamp_amsgrad_nesterov",
    "adadelta_weight_decay",
    "rmsprop_centered_momentum",
]
# param, states; None: the type of the math
TYPES: list[tuple[torch.dtype, torch.dtype | str | None]] = [
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float16, torch.float16),
    (torch.float64, None),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, "8bit"),
    (torch.bfloat16, "8bit"),
]


def digest(threads: int) -> str:
    """Of all parameters and states after two steps of every kind of formula in every type, and of the norms."""
    torch.set_num_threads(threads)
    total = hashlib.sha256()
    for name, (dtype, state_dtype) in itertools.product(NAMES, TYPES):
        shapes = [*SHAPES, *LARGE]
        bucket = copy_bucket(random_bucket(name, shapes, dtype, state_dtype=state_dtype))
        if dtype is torch.float16:  # these are rounded stochastically
            count = len(bucket.params)
            bucket.rounding = Rounding(1, 3, 1 + len(bucket.states), [*range(count)], [0] * count)
        for step in range(2):
            new_grads(bucket, step)
            assert NATIVE.prepare(bucket) is None
            NATIVE.run(bucket)
        for tensor in itertools.chain(bucket.params, *bucket.states):
            total.update(bits(tensor))
        total.update(repr((NATIVE.squares(bucket.grads), NATIVE.largest(bucket.grads))).encode())
        if bucket.variant.two_pass:
            total.update(bits(NATIVE.first(bucket)))
    total.update(bits(flushed()))
    return total.hexdigest()


def bits(tensor: torch.Tensor) -> bytes:
    """What a tensor holds."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def flushed() -> torch.Tensor:
    """Second moments that are denormal numbers, in a thread that is told to flush these to zero."""
    bucket = random_bucket("adamw", [(300000,)])
    bucket.grads[0].fill_(1e-20)
    if not torch.set_flush_denormal(True):
        return torch.zeros(0)
    try:
        assert NATIVE.prepare(bucket) is None
        NATIVE.run(bucket)
    finally:
        torch.set_flush_denormal(False)
    assert bucket.states[1][0].count_nonzero() == 0, (
        "denormal numbers were not flushed by every thread"
    )
    return bucket.states[1][0]


if __name__ == "__main__":
    reason = NATIVE.unavailable()
    if reason:
        sys.exit(f"unavailable: {reason}")
    print(core.isa(), *(digest(threads) for threads in (1, 2, 3)))
