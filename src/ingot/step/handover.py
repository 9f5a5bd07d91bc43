"""Takes the scale from a gradient scaler that hands over itself, as torch_npu's does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
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


def leaving_no_scale(hooked: Callable[..., Any]) -> Callable[..., Any]:
    """A step, with its hooks, that forgets the values of a GradScaler when it fails.

    GradScaler takes its values away after a step, but not after a failed one: the next step would use them again. A
    hook may fail as well as the step itself, and hooks run around ``step``, so that it cannot do this alone.
    """

    @wraps(hooked)
    def step(optimizer: FusedOptimizer, *args: Any, **options: Any) -> Any:
        try:
            return hooked(optimizer, *args, **options)
        except BaseException:
            if vars(optimizer).pop("found_inf", None) is not None:
                vars(optimizer).pop("grad_scale", None)
            raise

    return step
