"""Takes the scale from a gradient scaler that hands over itself, as torch_npu's does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.amp.grad_scaler import OptState

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer


@contextmanager
def handed_over(optimizer: FusedOptimizer, grad_scaler: Any = None) -> Iterator[None]:
    """Leave with the optimizer, for one step, what torch's own scaler leaves there: found_inf and grad_scale.

    torch's scaler sets both and calls ``step()``. torch_npu's, made after an older torch, calls
    ``step(grad_scaler=itself)`` and leaves it to the optimizer to ask.
    """
    if grad_scaler is None:
        yield
        return
    record = grad_scaler._per_optimizer_states[id(optimizer)]
    if record["stage"] is OptState.READY:
        grad_scaler._check_inf_per_device(optimizer)
    scale = grad_scaler._get_scale_async()
    found = [each.to(scale.device) for each in record["found_inf_per_device"].values()]
    optimizer.found_inf = sum(found, start=scale.new_zeros(()))
    optimizer.grad_scale = None if record["stage"] is OptState.UNSCALED else scale
    try:
        yield
    finally:
        vars(optimizer).pop("found_inf", None)
        vars(optimizer).pop("grad_scale", None)
