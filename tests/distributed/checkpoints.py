"""The jobs of test_checkpoints.py: saved by some number of processes, loaded by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts import Layout, local
from models import NEAR, OPTIONS, assert_close, make_model, train, whole_tensors
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _init_optim_state,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard

from cases import BACKENDS, CASES
from training import make_params

STEPS = 10
Tensors = dict[str, dict[str, Tensor]]  # by optimizer and name


def sharded_model() -> nn.Module:
    """FSDP2 on several processes, the plain model on one."""
    model = make_model()
    if dist.get_world_size() > 1:
        fully_shard(model[0])
        fully_shard(model)
    return model


def save(rank: int, folder: str) -> Tensors:
    """Train, save, train on; what comes out without any interruption."""
    result = {}
    for stem, case in CASES.items():
        model = sharded_model()
        optimizer = case.make(model.parameters(), **OPTIONS[stem])
        train(model, optimizer, rank, dist.get_world_size(), STEPS)
        states, optimizer_states = get_state_dict(model, optimizer)
        dcp.save({"model": states, "optim": optimizer_states}, checkpoint_id=Path(folder) / stem)
        train(model, optimizer, rank, dist.get_world_size(), STEPS, first=STEPS)
        result[stem] = whole_tensors(model, optimizer)
    return result


def load(rank: int, folder: str, expected: Tensors, exact: bool) -> None:
    """Load into a model and an optimizer that know nothing yet, and train on: the same numbers."""
    for stem, case in CASES.items():
        model = sharded_model()
        with torch.no_grad():
            for param in model.parameters():
                param.fill_(9.0)
        # The options come from the checkpoint.
        optimizer = case.make(model.parameters(), **{**OPTIONS[stem], "lr": 123.0})
        states, optimizer_states = get_state_dict(model, optimizer)
        together = {"model": states, "optim": optimizer_states}
        dcp.load(together, checkpoint_id=Path(folder) / stem)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=together["model"],
            optim_state_dict=together["optim"],
        )
        train(model, optimizer, rank, dist.get_world_size(), STEPS, first=STEPS)
        assert_close(
            whole_tensors(model, optimizer), expected[stem], tolerance=0 if exact else NEAR
        )


def whole_state_dicts(rank: int) -> None:
    """Whole or flattened states of a sharded optimizer, loaded into another that goes on with the same numbers."""
    for options in (
        StateDictOptions(full_state_dict=True),
        StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
        StateDictOptions(flatten_optimizer_state_dict=True),
    ):
        for stem, case in CASES.items():
            models = [sharded_model(), sharded_model()]
            one, two = (case.make(m.parameters(), **OPTIONS[stem]) for m in models)
            train(models[0], one, rank, dist.get_world_size(), STEPS)
            states: Any = get_optimizer_state_dict(models[0], one, options=options)
            if options.broadcast_from_rank0 and rank != 0:
                states = {}
            models[1].load_state_dict(models[0].state_dict())
            set_optimizer_state_dict(models[1], two, states, options=options)
            for model, optimizer in zip(models, (one, two), strict=True):
                train(model, optimizer, rank, dist.get_world_size(), STEPS, first=STEPS)
            assert_close(whole_tensors(models[1], two), whole_tensors(models[0], one), 0)


def bits(tensor: Tensor) -> Tensor:
    """Every bit, so that -0.0 is not 0.0."""
    return local(tensor.detach()).contiguous().view(torch.int32).clone()


def first_state(rank: int, processes: int) -> None:
    """The step with zero gradients and lr = 0, by which torch makes states to load into, changes no bit."""
    for stem, case in CASES.items():
        for backend in BACKENDS:
            for name, options in case.options.items():
                for layout in (Layout("mixed", processes), None):
                    wholes = make_params([(4, 5), (6,), (3, 3), (1,)])
                    with torch.no_grad():
                        wholes[0][0] = -0.0
                        wholes[0][1] = 1e-40
                        wholes[2].zero_()
                    params = wholes if layout is None else layout.params(wholes)
                    optimizer = case.make(params, backend=backend, **options)
                    before = [bits(param) for param in params]
                    lr = [float(group["lr"]) for group in optimizer.param_groups]
                    _init_optim_state(optimizer)
                    for param, old in zip(params, before, strict=True):
                        where = f"{stem}, {backend}, {name}, {tuple(param.shape)}"
                        # torch.optim, too, makes 0.0 of -0.0 here where the update has the sign of the gradient.
                        signed = ("sgd", "adadelta", "rmsprop", "rmsprop_tf")
                        if not (stem in signed and options.get("maximize")):
                            assert torch.equal(bits(param), old), where
                        assert param.grad is None
                        for key, value in optimizer.state.get(param, {}).items():
                            # Decay that is added to the gradient reaches the states, in torch.optim as well.
                            coupled = "weight_decay" in options and stem not in ("adamw", "adamp")
                            starts = key == "step" or case.kind.spec.states[key].start
                            assert starts or coupled or not local(value).any(), where
                    assert [float(group["lr"]) for group in optimizer.param_groups] == lr


def other_loads(rank: int, processes: int) -> None:
    """What needs no files, in one job."""
    first_state(rank, processes)
    whole_state_dicts(rank)
