"""What cannot be done while gradients are released inside backward, each with a message that gives the reason."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from ingot.step.planned import Planned
from ingot.step.roster import all_params

SECOND = (
    "a second gradient since the last step(). While gradients are released each is used up at once, so those of "
    "several backward passes cannot be added up. Call step() after every backward(). Instead of accumulating, make "
    "one larger batch (activation checkpointing makes room for it), or remove the handle. With "
    "torch.utils.checkpoint, pass use_reentrant=False"
)
CREATE_GRAPH = (
    "backward(create_graph=True) while gradients are released; the graph it makes needs the parameters as they "
    "were. Remove the handle first"
)
SCALER = (
    "a GradScaler is in use, and gradients cannot be released inside backward: they are scaled there, and an overflow "
    "shows only when all of them are known. Use bfloat16, which needs no scaler, or do not release gradients. (If it "
    "belongs to another model, let the first backward with released gradients come before its first scale())"
)
DDP = (
    "parameters of a DistributedDataParallel module, whose gradients are averaged over the processes later than they "
    "could be released, and which keeps all of them in buffers of its own: nothing would be saved. "
    "torch.distributed.fsdp.fully_shard works with released gradients; DistributedDataParallel("
    "gradient_as_bucket_view=True) at least keeps gradients only once"
)
FSDP1 = (
    "parameters of a FullyShardedDataParallel module, whose gradients are reduced later than they could be released; "
    "torch.distributed.fsdp.fully_shard works with released gradients"
)


TRACKED = (
    "track_metrics measures steps over all gradients, which are never there together while they are released inside "
    "backward; do one of the two"
)


def refuse_options(optimizer: Planned) -> None:
    """Options that need all gradients at once, and parameters that one gradient is to update twice."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    for number, group in enumerate(groups):
        for clip in optimizer.spec.clips(group):
            what = f"{clip.option}={group[clip.option]} of group {number}"
            raise ValueError(clipping_message(name, what))
    if optimizer._tracker is not None:
        raise RuntimeError(f"{name}: {TRACKED}")
    roster, _ = optimizer._planner.refresh(groups)
    if len(roster.rounds) > 1:
        twice = roster.place((roster.rounds[1] or [0])[0], groups)
        raise ValueError(
            f"{twice}: it stands in the list twice and would get two updates from one gradient, which is released "
            "after the first"
        )


def clipping_message(owner: str, what: str) -> str:
    """Why gradients cannot be clipped."""
    return (
        f"{owner}: {what} needs the norm of all gradients, which are never there together while they are released "
        "inside backward; do without clipping, or without releasing gradients"
    )


def refuse_leftovers(optimizer: Planned) -> None:
    """Gradients that are there already: the first backward would add to them."""
    roster, params = optimizer._planner.refresh(optimizer.param_groups)
    for ordinal, param in enumerate(params):
        if param.grad is not None:
            place = roster.place(ordinal, optimizer.param_groups)
            raise RuntimeError(f"{place}: it has a gradient already; call zero_grad() first")


def refuse_rivals(owner: str, params: Sequence[Tensor], hook: Callable[..., object]) -> None:
    """Parameters whose gradients another optimizer releases: the first to be called would leave the other nothing."""
    for param in params:
        hooks = (getattr(param, "_post_accumulate_grad_hooks", None) or {}).values()
        if any(
            getattr(each, "func", None) is hook and each.args[0]() is not None for each in hooks
        ):
            raise RuntimeError(
                f"{owner}: another optimizer releases the gradient of a parameter of shape {tuple(param.shape)}, and "
                "one gradient makes one update; remove() the handle of the other"
            )


def refuse_bystanders(optimizer: Planned) -> None:
    """Objects that change gradients after they are complete for autograd; parameters do not know of them.

    Asked when gradients are released, and in the first backward before anything is updated: 20 ms for 300,000 objects.
    Found later, they would leave every process with other parameters, or parameters updated with scaled gradients.
    """
    name, ours = type(optimizer).__name__, {id(p) for p in all_params(optimizer.param_groups)}
    if any(map(has_scaled, objects_of(GradScaler))):
        gc.collect()  # perhaps nobody has it any more
        if any(map(has_scaled, objects_of(GradScaler))):
            raise RuntimeError(f"{name}: {SCALER}")
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    parallel = torch.nn.parallel.DistributedDataParallel
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", parallel)
    for module in objects_of(parallel, fsdp):
        if any(id(param) in ours for param in module.parameters()):
            raise RuntimeError(f"{name}: {DDP if isinstance(module, parallel) else FSDP1}")


def has_scaled(scaler: GradScaler) -> bool:
    """Whether a scaler is in use: it makes its scale when it scales the first loss."""
    return scaler.is_enabled() and scaler._scale is not None


def objects_of(*types: type) -> list[Any]:
    """All objects of some types. ``isinstance`` would run code of proxies and lazy modules."""
    return [each for each in gc.get_objects() if issubclass(type(each), types)]


def unfinished(updated: Sequence[str], waiting: Sequence[str], trained: int) -> str:
    """How far a backward came that did not end, and how to go on."""
    rest = f"; {len(waiting)} more have a gradient ({some(waiting)})" if waiting else ""
    return (
        f"the last backward() did not finish: {len(updated)} of {trained} parameters were updated "
        f"({some(updated)}){rest}. The handle has all names in updated and waiting; call its discard() to drop the "
        "gradients and go on with the next batch"
    )


def some(names: Sequence[str]) -> str:
    """A list of names for a message, shortened."""
    shown = ", ".join(names[:5]) or "none"
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
