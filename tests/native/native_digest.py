"""Prints a digest of what the native core computes, per number of threads; run under each instruction set."""

from __future__ import annotations

import hashlib
import itertools
import sys

import torch
from native_buckets import SHAPES, copy_bucket, new_grads, random_bucket

from ingot.backends.native import NATIVE, core
from ingot.rounding import Rounding

LARGE = [(2, 70000), (140001,), (9000, 9), (2000, 65)]
NAMES = ["adamw_amsgrad", "sgd_momentum_nesterov", "lamb", "adamp", "adamp_amsgrad_nesterov"]
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def digest(threads: int) -> str:
    """Of all parameters and states after two steps of every kind of formula in every type, and of the norms."""
    torch.set_num_threads(threads)
    total = hashlib.sha256()
    for name, dtype in itertools.product(NAMES, TYPES):
        shapes = SHAPES if dtype is torch.float16 else [*SHAPES, *LARGE]
        state_dtype = dtype if dtype is torch.float16 else None
        bucket = copy_bucket(random_bucket(name, shapes, dtype, state_dtype=state_dtype))
        if dtype is torch.float16:
            bucket.rounding = Rounding(seed=1, step=3, operands=1 + len(bucket.states))
            for ordinal, param in enumerate(bucket.params):
                bucket.rounding.add(ordinal, param)
        for step in range(2):
            new_grads(bucket, step)
            assert NATIVE.prepare(bucket) is None
            NATIVE.run(bucket)
        for tensor in itertools.chain(bucket.params, *bucket.states):
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        total.update(repr((NATIVE.squares(bucket.grads), NATIVE.largest(bucket.grads))).encode())
    return total.hexdigest()


if __name__ == "__main__":
    reason = NATIVE.unavailable()
    if reason:
        sys.exit(f"unavailable: {reason}")
    print(core.isa(), *(digest(threads) for threads in (1, 2, 3)))
