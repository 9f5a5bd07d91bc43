"""How much memory the states of an optimizer take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ingot.sharding import dtensor


def state_bytes(states: Iterable[Mapping[str, Any]]) -> int:
    """The bytes of all tensors among the states in this process; of a DTensor, those of its local part."""
    tensors = (value for slots in states for value in slots.values() if isinstance(value, Tensor))
    return sum(part.numel() * part.element_size() for part in map(dtensor.local, tensors))
