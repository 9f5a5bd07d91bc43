"""What is handed over for one step: its arguments, and from a gradient scaler the scale and whether it overflowed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState

from ingot.reductions.norms import Whole
from ingot.sharding.collectives import overflowed, step_groups

Attributes = MutableMapping[str, Any]  # vars(optimizer)


def arguments_of(
    owner: str, call: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Callable[[], Any] | None, Any]:
    """The closure and the scaler that a step was called with; raises TypeError for anything else."""
    strange = [name for name in named if name not in ("closure", "grad_scaler")]
    if strange:
        raise TypeError(
            f"{owner}: there is no argument {strange[0]}; it takes closure and grad_scaler"
        )
    if len(call) > 1:
        raise TypeError(f"{owner}: it takes closure alone by position, got {len(call)} arguments")
    if call and "closure" in named:
        raise TypeError(f"{owner}: closure is given twice, by position and by name")
    closure = call[0] if call else named.get("closure")
    if closure is not None and not callable(closure):
        raise TypeError(
            f"{owner}: closure must be None or a function that returns the loss, got {closure!r}"
        )
    scaler = named.get("grad_scaler")
    # torch_npu's scaler need not be one of torch's; a disabled one has no record of optimizers.
    if scaler is not None and not hasattr(scaler, "_per_optimizer_states"):
        raise TypeError(
            f"{owner}: grad_scaler must be None or an enabled torch.amp.GradScaler, got {scaler!r}"
        )
    return closure, scaler


@contextmanager
def handed_over(optimizer: object, grad_scaler: Any = None) -> Iterator[None]:
    """Leave with the optimizer, for one step, what torch's own scaler leaves there: found_inf and grad_scale.

    torch's scaler sets both and calls ``step()``. torch_npu's, made after an older torch, calls
    ``step(grad_scaler=itself)`` and leaves it to the optimizer to ask.
    """
    if grad_scaler is None:
        yield
        return
    attributes = vars(optimizer)
    record = grad_scaler._per_optimizer_states[id(optimizer)]
    if record["stage"] is OptState.READY:
        grad_scaler._check_inf_per_device(optimizer)
    scale = grad_scaler._get_scale_async()
    found = [each.to(scale.device) for each in record["found_inf_per_device"].values()]
    attributes["found_inf"] = sum(found, start=scale.new_zeros(()))
    attributes["grad_scale"] = None if record["stage"] is OptState.UNSCALED else scale
    try:
        yield
    finally:
        take_back(attributes)


def take_back(attributes: Attributes) -> None:
    """Remove what a scaler left: torch's does so after a step, but not after one that failed."""
    if attributes.pop("found_inf", None) is not None:
        attributes.pop("grad_scale", None)


def skips(optimizer: object, everything: Whole, grad_scaler: Any) -> bool:
    """Whether a scaler found an overflow, here or on a process that steps along: the step is then left out.

    All processes must go on with the same scale. So where only another one saw the overflow, the scaler of this
    process is told as well, before its ``update()``.
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    if found_inf is None:
        return False
    groups = step_groups(everything.roster, everything.norm_group)
    scale = getattr(optimizer, "grad_scale", None)
    skip = overflowed(everything.roster, groups, found_inf, scale)
    if skip and groups and not bool(found_inf != 0):
        scaler = grad_scaler or calling_scaler()
        if scaler is not None:
            record = scaler._per_optimizer_states[id(optimizer)]
            for found in record["found_inf_per_device"].values():
                found.fill_(1.0)
    return skip


def calling_scaler() -> GradScaler | None:
    """The GradScaler whose ``step`` is under way. torch (2.10 to 2.15) does not hand itself over."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, GradScaler):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def leaving_no_scale(hooked: Callable[..., Any]) -> Callable[..., Any]:
    """A step, with its hooks, that forgets the values of a GradScaler when it fails.

    GradScaler takes its values away after a step, but not after a failed one: the next step would use them again. A
    hook may fail as well as the step itself, and hooks run around the step, so that it cannot do this alone.
    """

    @wraps(hooked)
    def step(optimizer: object, *args: Any, **options: Any) -> Any:
        try:
            return hooked(optimizer, *args, **options)
        except BaseException:
            take_back(vars(optimizer))
            raise

    return step
