"""The whole path of a step: planned from all parameters as they are now, with hooks and profiler marks around it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ingot.reductions.norms import Whole
from ingot.step.handover import arguments_of, handed_over, leaving_no_scale, skips
from ingot.step.planned import Planned
from ingot.step.quick import Quick, remember
from ingot.step.run import run, tell_failure

if TYPE_CHECKING:
    from ingot.metrics.observe import Observation


@leaving_no_scale
@torch.optim.Optimizer.profile_hook_step
@torch._disable_dynamo  # type: ignore[attr-defined]
@torch.inference_mode(False)  # states are ordinary tensors, wherever they are made
@torch.no_grad()
def whole_step(optimizer: Planned, *call: Any, **named: Any) -> Any:
    """Make a step, from the arguments that hooks have left.

    Args:
        optimizer: the optimizer.
        *call: optionally ``closure``, which evaluates the model and returns the loss; it runs first, with gradients
            enabled.
        **named: ``closure``, or ``grad_scaler``, which torch_npu's scaler gives.

    Returns:
        What the closure returned, else None.
    """
    closure, scaler = arguments_of(f"{type(optimizer).__name__}.step", call, named)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    released = optimizer._released
    if released is not None:
        released.refuse_unfinished()
    # Step counts are Python numbers, so the host must know whether the step is made: this is the only place where it
    # waits for the device.
    with handed_over(optimizer, scaler):
        everything = optimizer._everything()
        if not skips(optimizer, everything, scaler):
            tracker = optimizer._tracker
            observation = None if tracker is None else tracker.observation()
            for chosen in everything.roster.rounds:
                optimizer._quick = make_step(
                    optimizer, everything, chosen, observation, again=closure is None
                )
            if tracker is not None:
                tracker.made_step(observation, optimizer.param_groups)
    if released is not None:
        optimizer._quick = None  # it would not tell the handle that the iteration is over
        released.begin_iteration()
    return loss


def make_step(
    optimizer: Planned,
    everything: Whole,
    chosen: Sequence[int] | None,
    observation: Observation | None = None,
    *,
    again: bool = True,
) -> Quick | None:
    """Plan a step over the parameters with these ordinals (None for all), run it, and observe it if asked to.

    If planning fails, processes that would wait for this one are told. ``again``: whether the next step may be one of
    the quick path.

    Returns:
        What the quick path needs for the next step like this one; None if it cannot be taken.
    """
    spec, groups, planner = optimizer.spec, optimizer.param_groups, optimizer._planner
    try:
        buckets = optimizer._plan(chosen, everything)
        if observation is not None:
            observation.prepare(buckets)
    except Exception:
        with contextlib.suppress(Exception):
            tell_failure(spec, groups, everything, observation is not None)
        raise
    scale = getattr(optimizer, "grad_scale", None)
    optimizer._grad_norm = run(
        buckets, spec, groups, optimizer.state, everything, scale, observation
    )
    if not again or planner.recalled is None or scale is not None:
        return None
    try:
        return remember(vars(optimizer), planner, spec, groups, [*optimizer.all_rules()], buckets)
    except MemoryError:
        return None  # this step has been made
