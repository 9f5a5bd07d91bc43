"""Both ways of keeping states that promises are tested with: float32, and 8-bit codes, which large tensors have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import pytest
import torch
from torch.optim import Optimizer

from ingot.declare.words import sqrt
from ingot.storage.blockwise8 import FEWEST

each_state_dtype = pytest.mark.parametrize(
    "state_dtype", [None, "8bit"], ids=["float32 states", "8-bit states"]
)


def enough(shapes: Iterable[Sequence[int]], state_dtype: str | None) -> list[tuple[int, ...]]:
    """Shapes for these states: for codes, more rows where a tensor has so few elements that it would keep float32.

    Scalars and tensors without elements stay as they are, so that one optimizer has states of both kinds.
    """
    result = []
    for shape in shapes:
        numel = prod(shape)
        if state_dtype == "8bit" and len(shape) > 0 and 0 < numel < FEWEST:
            result.append((shape[0] * -(-FEWEST // numel), *shape[1:]))
        else:
            result.append(tuple(shape))
    return result


def assert_kept(optimizer: Optimizer, state_dtype: str | None) -> None:
    """That a test is about the states it says: some are codes, or none is."""
    types = {
        value.dtype
        for slots in optimizer.state.values()
        for value in slots.values()
        if isinstance(value, torch.Tensor)
    }
    assert bool(types & {torch.int8, torch.uint8}) == (state_dtype == "8bit"), types


def round_roots_correctly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `lists` the roots of every other backend.

    torch's kernel rounds some float32 to the wrong neighbour: one in a hundred or one in five, depending on the
    processor. Behind such a root a state on the border between two codes gets the other one.
    """
    monkeypatch.setattr(torch, "_foreach_sqrt", lambda each: [*map(sqrt, each)])
    monkeypatch.setattr(torch, "_foreach_sqrt_", lambda each: [x.copy_(sqrt(x)) for x in each])
