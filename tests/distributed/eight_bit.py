"""The jobs of test_eight_bit.py: 8-bit states of parameters that processes share."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts import Layout, local, mesh_of
from matrix import Outcome, outcomes
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cases import CASES, Case
from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params, with_state

EIGHT: dict[str, Any] = {"lr": 0.01, "state_dtype": "8bit"}
STEMS = ("adamw", "lamb", "sgd", "rmsprop_tf")
Saved = dict[str, dict[str, Tensor]]  # whole tensors by optimizer and name


def make_model(mesh_shape: tuple[int, ...] = ()) -> nn.Module:
    """A layer whose rows fill whole blocks, and one whose rows do not and are not a multiple of the processes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 67))
    if dist.get_world_size() > 1:
        mesh = mesh_of(mesh_shape or (dist.get_world_size(),))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def train(model: nn.Module, optimizer: Any, steps: int, first: int = 0) -> None:
    """The same samples in every process, so that the gradient does not depend on their number."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 128, generator=generator)
        model(inputs).sin().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module, optimizer: FusedOptimizer) -> dict[str, Tensor]:
    """Parameters, and states as numbers."""
    options = StateDictOptions(full_state_dict=True)
    states = get_optimizer_state_dict(model, optimizer, options=options)["state"]
    result = {
        f"{name} {key}": value for name, slots in states.items() for key, value in slots.items()
    }  # type: ignore[union-attr]
    for name, param in model.named_parameters():
        result[name] = param.full_tensor() if isinstance(param, DTensor) else param
    every = [
        {
            k: torch.as_tensor(v).detach().clone()
            for k, v in result.items()
            if not k.endswith("_scale")
        }
    ]
    dist.broadcast_object_list(every)  # torch gives whole states to the first process alone
    return every[0]


def save(rank: int, folder: str) -> tuple[Saved, Saved]:
    """Train, save, train on: what was saved, and what comes out without an interruption."""
    saved, after = {}, {}
    for stem in STEMS:
        model = make_model()
        optimizer = with_state(CASES[stem], model.parameters(), **EIGHT)
        train(model, optimizer, 4)
        states, optimizer_states = get_state_dict(model, optimizer)
        dcp.save({"model": states, "optim": optimizer_states}, checkpoint_id=Path(folder) / stem)
        saved[stem] = whole(model, optimizer)
        train(model, optimizer, 3, first=4)
        after[stem] = whole(model, optimizer)
    return saved, after


def load(rank: int, folder: str, saved: Saved, after: Saved, savers: int) -> None:
    """Load on another number of processes: the same numbers wherever blocks are the same."""
    for stem in STEMS:
        model = make_model()
        with torch.no_grad():
            for param in model.parameters():
                param.fill_(9.0)
        optimizer = with_state(CASES[stem], model.parameters(), **EIGHT)
        states, optimizer_states = get_state_dict(model, optimizer)
        together = {"model": states, "optim": optimizer_states}
        dcp.load(together, checkpoint_id=Path(folder) / stem)
        set_state_dict(
            model, optimizer, model_state_dict=together["model"], optim_state_dict=together["optim"]
        )
        same = savers == dist.get_world_size()
        compare(whole(model, optimizer), saved[stem], same)
        first = next(iter(model.parameters()))
        codes = optimizer.state[first][next(iter(CASES[stem].kind.spec.states))]
        assert codes.dtype in (torch.int8, torch.uint8)
        train(model, optimizer, 3, first=4)
        if same:
            compare(whole(model, optimizer), after[stem], same)


def compare(actual: dict[str, Tensor], expected: dict[str, Tensor], same: bool) -> None:
    """Equal; but states of the layer whose blocks begin elsewhere are within a code of each other."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        coded = name.startswith("2.weight ") and not name.endswith("step")
        atol = 0.02 * float(value.abs().max()) if coded and not same else 0.0
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=atol, msg=lambda t, n=name: f"{n}: {t}"
        )


def layouts(case: Case, name: str) -> None:
    """Where a local part is made of whole blocks of the whole tensor, so are its codes; elsewhere it is near."""
    layout = Layout(name, 2)
    wholes = make_params([(256, 128), (67, 65), (40, 3)])
    params = layout.params(wholes)
    one = with_state(case, params, **EIGHT)
    two = with_state(case, wholes, **EIGHT)
    for step in range(3):
        give_grads(wholes, step)
        for index, (param, expected) in enumerate(zip(params, wholes, strict=True)):
            assert expected.grad is not None
            param.grad = layout.lay_out(index, expected.grad)
        one.step()
        two.step()
    elementwise = case.kind.spec.finish is None and not any(
        map(case.kind.spec.clips, one.param_groups)
    )
    for index, (param, expected) in enumerate(zip(params, wholes, strict=True)):
        exact = elementwise and ((name == "rows" and index == 0) or index == 2)
        close = dict(rtol=0, atol=0 if exact else 3e-2)
        torch.testing.assert_close(local(param.detach()), layout.cut(index, expected), **close)
        for key, value in one.state[param].items():
            if key.endswith("_scale"):
                assert value.shape == (-(-local(param).numel() // 128),)
            elif index < 2 and key != "step":
                assert value.dtype in (torch.int8, torch.uint8)
                assert getattr(value, "placements", None) == getattr(param, "placements", None)
                if exact:
                    assert torch.equal(local(value), layout.cut(index, two.state[expected][key]))


def hsdp(case: Case) -> None:
    """Copies of shards have the same codes."""
    model = make_model((2, 1))
    optimizer = with_state(case, model.parameters(), **EIGHT)
    train(model, optimizer, 3)
    for param in model.parameters():
        for key, value in optimizer.state[param].items():
            if key != "step":
                mine = local(value).contiguous()
                other = mine.clone()
                dist.broadcast(other, 0)
                assert torch.equal(mine, other), key


def whole_states(case: Case) -> None:
    """Whole states, as one process would save them, come back as the same codes."""
    for options in (
        StateDictOptions(full_state_dict=True),
        StateDictOptions(flatten_optimizer_state_dict=True),
    ):
        models = [make_model(), make_model()]
        one, two = (with_state(case, model.parameters(), **EIGHT) for model in models)
        train(models[0], one, 3)
        states = get_optimizer_state_dict(models[0], one, options=options)
        every = [states]
        if options.full_state_dict:
            dist.broadcast_object_list(every)
        models[1].load_state_dict(models[0].state_dict())
        set_optimizer_state_dict(models[1], two, every[0], options=options)
        for model, optimizer in zip(models, (one, two), strict=True):
            train(model, optimizer, 3, first=3)
        compare(whole(models[1], two), whole(models[0], one), True)


def zero(case: Case) -> None:
    """ZeroRedundancyOptimizer saves and loads codes, and goes on with the same numbers."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, 67))
    models = [DistributedDataParallel(deepcopy(plain)) for _ in range(2)]
    # ZeRO writes the options it is given into the groups, where those of the whole optimizer have no place.
    kind = partial(case.kind, state_dtype="8bit")
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    one = ZeroRedundancyOptimizer(models[0].parameters(), kind, lr=0.01, **options)
    train(models[0], one, 3)
    one.consolidate_state_dict(to=0)
    saved = [deepcopy(one.state_dict()) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(saved)
    models[1].load_state_dict(models[0].state_dict())
    two = ZeroRedundancyOptimizer(models[1].parameters(), kind, lr=1.0, **options)
    two.load_state_dict(saved[0])
    for model, optimizer in zip(models, (one, two), strict=True):
        train(model, optimizer, 3, first=3)
    for mine, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(mine, other)
    codes = [
        v.dtype
        for slots in two.optim.state.values()
        for v in slots.values()
        if isinstance(v, Tensor)
    ]
    assert torch.int8 in codes or torch.uint8 in codes


def shared(rank: int) -> Outcome:
    """Everything that needs no files."""
    checks: dict[str, Callable[[], None]] = {}
    for stem, case in CASES.items():
        for name in ("rows", "columns", "mixed"):
            checks[f"{name} {stem}"] = partial(layouts, case, name)
    for stem in STEMS:
        checks[f"hsdp {stem}"] = partial(hsdp, CASES[stem])
        checks[f"whole {stem}"] = partial(whole_states, CASES[stem])
        checks[f"zero {stem}"] = partial(zero, CASES[stem])
    return outcomes(checks.items())
