"""The job of test_state_dict_options.py: get_ and set_optimizer_state_dict with every set of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch.distributed as dist
from matrix import Outcome, outcomes
from models import OPTIONS, assert_close, make_model, train, whole_tensors
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from cases import CASES, Case

STEPS = 2
FLAGS = ("full_state_dict", "cpu_offload", "flatten_optimizer_state_dict", "ignore_frozen_params")


def option_sets() -> Iterator[dict[str, bool]]:
    """Every combination that torch's own optimizers know; broadcasting is defined for whole states only."""
    for values in product((False, True), repeat=len(FLAGS)):
        chosen = dict(zip(FLAGS, values, strict=True))
        if chosen["full_state_dict"] and chosen["flatten_optimizer_state_dict"]:
            continue  # torch saves such a state and cannot load it, see test_state_dict_options.py
        yield chosen
        if chosen["full_state_dict"]:
            yield {**chosen, "broadcast_from_rank0": True}


def model_with_a_frozen_layer(sharded: bool) -> nn.Module:
    """One layer needs no gradient, so its parameters never get a state."""
    model = make_model()
    model[3].requires_grad_(False)
    if sharded:
        fully_shard(model[0])
        fully_shard(model)
    return model


def leaves(states: Any) -> Iterator[Any]:
    """All values of nested dictionaries and lists."""
    if isinstance(states, dict):
        for value in states.values():
            yield from leaves(value)
    elif isinstance(states, (list, tuple)):
        for value in states:
            yield from leaves(value)
    else:
        yield states


def handed_over(case: Case, rank: int, chosen: dict[str, bool], sharded: bool) -> None:
    """Model and optimizer states go to a fresh pair, which goes on with the same numbers."""
    options = StateDictOptions(**chosen)
    # Replicas see the same samples: nothing averages their gradients here.
    part = (rank, dist.get_world_size()) if sharded else (0, 1)
    settings = OPTIONS.get(case.name, {"lr": 0.01})
    models = [model_with_a_frozen_layer(sharded), model_with_a_frozen_layer(sharded)]
    one, two = (
        case.make([p for p in model.parameters() if p.requires_grad], **settings)
        if chosen["ignore_frozen_params"]
        else case.make(model.parameters(), **settings)
        for model in models
    )
    two.param_groups[0]["lr"] = 9.0  # the saved one counts
    train(models[0], one, *part, STEPS)
    states: Any = get_optimizer_state_dict(models[0], one, options=options)
    whole = chosen["full_state_dict"]
    assert not (whole and any(isinstance(leaf, DTensor) for leaf in leaves(states)))
    tensors = [leaf for leaf in leaves(states) if isinstance(leaf, Tensor) and leaf.numel() > 1]
    # Whole states that are offloaded are gathered in the first process only.
    assert tensors or (whole and chosen["cpu_offload"] and rank > 0)
    if chosen.get("broadcast_from_rank0"):
        states = states if rank == 0 else {}
    elif whole and chosen["cpu_offload"]:
        box = [states]
        dist.broadcast_object_list(box)
        (states,) = box
    models[1].load_state_dict(models[0].state_dict())
    set_optimizer_state_dict(models[1], two, states, options=options)
    for model, optimizer in zip(models, (one, two), strict=True):
        train(model, optimizer, *part, STEPS, first=STEPS)
    assert_close(whole_tensors(models[1], two), whole_tensors(models[0], one), 0)


def all_option_sets(rank: int, sharded: bool) -> Outcome:
    """Every set of options for every optimizer."""
    checks: dict[str, Callable[[], None]] = {}
    for chosen in option_sets():
        name = ", ".join(flag for flag, value in chosen.items() if value) or "none"
        for stem, case in CASES.items():
            checks[f"{stem}: {name}"] = partial(handed_over, case, rank, chosen, sharded)
    return outcomes(checks.items())
