"""How much memory the states of an optimizer take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ingot.sharding import dtensor


def state_bytes(state: Mapping[Any, Any]) -> int:
    """The bytes of all tensors in the states of parameters in this process; of a DTensor, those of its local part.

    Other keys of ``optimizer.state`` are the user's own.
    """
    states = (s for key, s in state.items() if isinstance(key, Tensor) and isinstance(s, Mapping))
    tensors = (value for slots in states for value in slots.values() if isinstance(value, Tensor))
    return sum(part.numel() * part.element_size() for part in map(dtensor.local, tensors))
