"""ingot.param_groups: who decays, which layer has which rate, how the groups read, what is refused."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from cases import Case, each_case
from training import fit, small_model


class Scale(nn.Module):
    """Parameters of its own, of no and of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.token = nn.Parameter(torch.ones(1, 1, 4))


class MyRMSNorm(nn.Module):
    """A norm that torch does not know, with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 4))


class Vision(nn.Module):
    """An embedding, a stack of blocks, a norm and a head, as many models are built."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 4, 8))
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)


def names(groups: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {group["name"]: group["param_names"] for group in groups}


def test_biases_norms_and_scalars_do_not_decay() -> None:
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "batch": nn.BatchNorm2d(4),
            "group": nn.GroupNorm(2, 4),
            "layer": nn.LayerNorm((2, 3)),
            "own": MyRMSNorm(),
            "lstm": nn.LSTM(2, 2),
            "attention": nn.MultiheadAttention(4, 2, add_bias_kv=True),
            "words": nn.Embedding(5, 4),
            "scale": Scale(),
        }
    )
    groups = ingot.param_groups(model, weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert names(groups)["decay"] == [
        "conv.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "words.weight",
        "scale.token",
    ]
    together = dict(model.named_parameters())
    for group in groups:
        for name, param in zip(group["param_names"], group["params"], strict=True):
            assert together.pop(name) is param
    assert not together


def test_more_can_be_kept_from_decaying() -> None:
    groups = ingot.param_groups(Vision(1), 0.1, no_decay=["position", "embed.*"])
    assert names(groups)["decay"] == ["blocks.0.1.weight", "head.weight"]
    one = ingot.param_groups(Vision(1), 0.1, no_decay="position")
    assert "position" in names(one)["no_decay"] and "embed.weight" in names(one)["decay"]
    with pytest.raises(ValueError, match=r"no parameter matches no_decay pattern 'postion'"):
        ingot.param_groups(Vision(1), 0.1, no_decay=["position", "postion"])


def test_layers_have_falling_rates() -> None:
    groups = ingot.param_groups(Vision(), 0.1, 0.5, lr=0.8)
    rates = {name: group["lr"] for group in groups for name in group["param_names"]}
    assert rates["position"] == rates["embed.weight"] == 0.8 * 0.5**4
    assert rates["blocks.0.0.weight"] == rates["blocks.0.1.weight"] == 0.8 * 0.5**3
    assert rates["blocks.2.1.bias"] == 0.8 * 0.5
    assert rates["norm.weight"] == rates["head.weight"] == rates["head.bias"] == 0.8
    assert rates.keys() == dict(Vision().named_parameters()).keys()
    assert [group["name"] for group in groups] == [
        f"layer_{depth}_{kind}" for depth in range(5) for kind in ("decay", "no_decay")
    ]
    many = ingot.param_groups(Vision(12), 0.1, 0.5, lr=0.8)
    assert many[0]["name"] == "layer_00_decay" and len({g["name"] for g in many}) == len(many)


def test_a_plain_sequential_is_its_own_stack_and_entries_without_parameters_do_not_count() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(), nn.Linear(2, 2))
    groups = ingot.param_groups(model, 0.1, 0.5, lr=1.0)
    assert [group["lr"] for group in groups] == [0.5, 0.5, 1.0, 1.0]


def test_the_stack_is_found_inside_a_wrapper() -> None:
    wrapped = nn.ModuleDict({"module": Vision()})
    inner = ingot.param_groups(Vision(), 0.1, 0.5, lr=1.0)
    outer = ingot.param_groups(wrapped, 0.1, 0.5, lr=1.0)
    assert [group["lr"] for group in inner] == [group["lr"] for group in outer]


def test_layers_can_be_told() -> None:
    model = nn.ModuleDict({"low": nn.Linear(2, 2), "high": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"cannot tell the layers of ModuleDict.*Pass layers="):
        ingot.param_groups(model, 0.1, 0.5, lr=1.0)
    depth = {"low": 0, "high": 2}
    groups = ingot.param_groups(
        model, 0.1, 0.5, lr=1.0, layers=lambda name: depth[name.split(".")[0]]
    )
    assert [group["lr"] for group in groups] == [0.25, 0.25, 1.0, 1.0]
    with pytest.raises(ValueError, match=re.escape("layers('low.weight') must be an integer >= 0")):
        ingot.param_groups(model, 0.1, 0.5, lr=1.0, layers=lambda name: -1)
    with pytest.raises(ValueError, match="layers has no meaning without layer_decay"):
        ingot.param_groups(model, 0.1, layers=lambda name: 0)


def test_frozen_parameters_are_left_out_unless_asked_for() -> None:
    model = small_model()
    model[0].requires_grad_(False)
    groups = ingot.param_groups(model, 0.1)
    assert names(groups) == {"decay": ["3.weight"], "no_decay": ["2.weight", "2.bias", "3.bias"]}
    assert groups.frozen == ["0.weight", "0.bias"]
    assert "left out, frozen: 0.weight, 0.bias" in repr(groups)
    everything = ingot.param_groups(model, 0.1, frozen=True)
    assert names(everything)["decay"] == ["0.weight", "3.weight"] and not everything.frozen
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that needs a gradient"):
        ingot.param_groups(model, 0.1)


def test_shared_parameters_count_once() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3, bias=False))
    model[1].weight = model[0].weight
    (group,) = ingot.param_groups(model, 0.1)
    assert group["param_names"] == ["0.weight"] and len(group["params"]) == 1


@each_case
def test_training_with_groups_is_training_with_groups_by_hand(case: Case) -> None:
    ours, theirs = small_model(), small_model()
    rates = {"0": 0.005, "2": 0.01, "3": 0.02}
    by_hand = [
        {
            "params": [param],
            "lr": rates[name[0]],
            "weight_decay": 0.1 if param.ndim == 2 else 0.0,
        }
        for name, param in theirs.named_parameters()
    ]
    options = {"clip_scope": "global"} if "clip_scope" in case.keywords else {}
    made = case.kind(ingot.param_groups(ours, 0.1, 0.5, lr=0.02), **{"lr": 9.0, **options})
    losses = fit(ours, made), fit(theirs, case.kind(by_hand, **{"lr": 9.0, **options}))
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_torch_optimizers_and_schedulers_take_the_groups() -> None:
    net = Vision()
    optimizer = torch.optim.AdamW(ingot.param_groups(net, 0.1, 0.5, lr=0.8), lr=0.8)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25)
    assert [group["lr"] for group in optimizer.param_groups][-1] == 0.8 * 0.25
    assert scheduler.get_last_lr()[0] == 0.8 * 0.5**4 * 0.25
    again = torch.optim.AdamW(ingot.param_groups(net, 0.1, 0.5, lr=0.8), lr=0.8)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert again.param_groups[0]["name"] == "layer_0_decay"


def test_the_table_reads_well() -> None:
    text = repr(ingot.param_groups(Vision(), 0.05, 0.5, lr=0.001))
    lines = text.splitlines()
    assert lines[0] == "ParamGroups: 10 groups"
    assert lines[1].split() == ["group", "tensors", "parameters", "weight_decay", "lr", "names"]
    row = lines[2].split(maxsplit=5)
    assert row == ["layer_0_decay", "2", "64", "0.05", "6.25e-05", "position, embed.weight"]
    assert all(line[: lines[1].index("names")].rstrip() for line in lines)
    many = nn.Sequential(*(nn.Linear(32, 64, bias=False) for _ in range(7)))
    text = repr(ingot.param_groups(many, 0.05))
    assert text.startswith("ParamGroups: 1 group\n")
    assert "14,336" in text and "0.weight, 1.weight, 2.weight, ... (3 more), 6.weight" in text
    assert " lr " not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": -1}, "Invalid weight_decay value: -1 .*param_groups: weight_decay"),
        ({"weight_decay": 0, "layer_decay": 0, "lr": 1.0}, "layer_decay must be None or in the"),
        ({"weight_decay": 0, "layer_decay": 1.5, "lr": 1.0}, "Invalid layer_decay value: 1.5"),
        ({"weight_decay": 0, "layer_decay": 0.5}, "layer_decay=0.5 needs lr"),
        ({"weight_decay": 0, "lr": -1.0}, "Invalid learning rate: -1.0"),
    ],
)
def test_values_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ingot.param_groups(Vision(), **options)


def test_models_that_are_refused() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got list"):
        ingot.param_groups(list(Vision().parameters()), 0.1)
    with pytest.raises(ValueError, match="weight has no shape yet"):
        ingot.param_groups(nn.LazyLinear(3), 0.1)
    flat = nn.Module()
    flat.register_parameter("_flat_param", nn.Parameter(torch.ones(3)))
    with pytest.raises(ValueError, match="_flat_param is many parameters in one"):
        ingot.param_groups(flat, 0.1)
