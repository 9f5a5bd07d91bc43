"""The memory floor: how long it takes only to read and write what an optimizer must, without the math."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ingot.backends import native

# Operands that are read and written (the parameter and its states); the gradient is read besides.
# The least any implementation can do: Lamb and AdamP read large tensors a second time, BertAdam reads the
# gradients once more for their norm, and that is counted against them.
WRITTEN = {"sgd": 2} | dict.fromkeys(
    ["adamw", "lamb", "adamp", "bert_adam", "adam", "adadelta", "rmsprop", "rmsprop_tf"], 3
)


def missing() -> str | None:
    """Why the floor cannot be measured; None if it can."""
    reason = native.NATIVE.unavailable()
    return f"the native core is not there: {reason}" if reason else None


def build(optimizer: str, grads: Sequence[Tensor]) -> Callable[[], None]:
    """A step over tensors of its own that has the memory traffic of ``optimizer`` and nothing else."""
    read = [list(grads)]
    written = [[torch.ones_like(grad) for grad in grads] for _ in range(WRITTEN[optimizer])]
    return lambda: native.floor(read, written)
