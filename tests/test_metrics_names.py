"""Under which names ``track_metrics`` lists parameters: every one of them under a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.metrics import read
from training import assert_unchanged, picture


def two() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 2), nn.Linear(3, 2)


def step(optimizer: torch.optim.Optimizer, *models: nn.Module) -> None:
    sum(model(torch.ones(1, 3)).sum() for model in models).backward()
    optimizer.step()


def test_groups_whose_names_are_the_same(tmp_path: Path) -> None:
    one, other = two()
    optimizer = ingot.AdamW(
        [{"params": one.named_parameters()}, {"params": other.named_parameters()}]
    )
    optimizer.track_metrics(1, [tmp_path / "run.csv", tmp_path / "run.jsonl"])
    step(optimizer, one, other)
    expected = ["group0.weight", "group0.bias", "group1.weight", "group1.bias"]
    found = optimizer.metrics()
    assert list(found) == expected
    params = [*one.parameters(), *other.parameters()]
    for values, param in zip(found.values(), params, strict=True):
        assert values["grad_norm"] == pytest.approx(param.grad.norm().item())
    for name in ("run.csv", "run.jsonl"):
        assert [list(metrics) for metrics in read(tmp_path / name)] == [expected]


def test_names_do_not_depend_on_which_gradients_there_are() -> None:
    one, other = two()
    optimizer = ingot.AdamW(
        [{"params": one.named_parameters()}, {"params": other.named_parameters()}]
    )
    optimizer.track_metrics(1)
    step(optimizer, other)
    assert list(optimizer.metrics()) == ["group1.weight", "group1.bias"]


def test_one_group_with_the_same_names() -> None:
    one, other = two()
    optimizer = ingot.AdamW([*one.named_parameters(), *other.named_parameters()])
    optimizer.track_metrics(1)
    step(optimizer, one, other)
    expected = ["group0[0].weight", "group0[1].bias", "group0[2].weight", "group0[3].bias"]
    assert list(optimizer.metrics()) == expected


def test_a_name_that_was_given_is_kept() -> None:
    one, other = two()
    optimizer = ingot.AdamW(
        [
            {"params": one.named_parameters()},
            {"params": other.named_parameters()},
            {"params": [("extra", nn.Parameter(torch.ones(2)))]},
            {"params": [("extra", nn.Parameter(torch.ones(2)))]},
        ]
    )
    names = [("weight", other.weight), ("group0.weight", one.bias), ("group2.extra", other.bias)]
    optimizer.track_metrics(1, names=names)
    for group in optimizer.param_groups[2:]:
        group["params"][0].grad = torch.ones(2)
    step(optimizer, one, other)
    given = ["weight", "group0.weight", "group2.extra"]
    others = ["group0[0].weight", "group2[0].extra", "group3.extra"]
    assert list(optimizer.metrics()) == given + others


def test_places_that_were_given_to_others_as_names() -> None:
    one, other = two()
    optimizer = ingot.AdamW([*one.parameters(), *other.parameters()])
    optimizer.track_metrics(1, names=[("group0[3]", one.weight)])
    step(optimizer, one, other)
    assert list(optimizer.metrics()) == ["group0[3]", "group0[1]", "group0[2]", "group0[3]+"]


def test_a_parameter_in_the_list_twice_has_two_entries() -> None:
    one, _ = two()
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = ingot.SGD([*one.named_parameters(), ("weight", one.weight)], lr=0.1)
    optimizer.track_metrics(1)
    step(optimizer, one)
    assert list(optimizer.metrics()) == ["group0[0].weight", "bias", "group0[2].weight"]


NAMES: list[tuple[Any, str]] = [
    (lambda one, other: [("x", one.weight), ("x", one.bias)], "names has 'x' for two parameters"),
    (lambda one, other: other, "names has no parameter of the optimizer"),
    (lambda one, other: [], "names has no parameter of the optimizer"),
    (lambda one, other: [("a", 1)], "names must be .*pairs"),
    (lambda one, other: [("a", one.weight), ("b", None)], "names must be .*pairs"),
    (lambda one, other: [(3, one.weight)], "names must be .*pairs"),
    (lambda one, other: ["ab"], "names must be .*pairs"),
    (lambda one, other: 7, "names must be .*pairs"),
]


@pytest.mark.parametrize(("names", "message"), NAMES)
def test_names_that_are_refused(names: Any, message: str) -> None:
    one, other = two()
    optimizer = ingot.AdamW(one.parameters())
    optimizer.track_metrics(1)
    step(optimizer, one)
    before, last = picture(optimizer), optimizer.metrics()
    with pytest.raises((TypeError, ValueError), match=f"AdamW.track_metrics: {message}"):
        optimizer.track_metrics(5, names=names(one, other))
    assert_unchanged(optimizer, before)
    assert optimizer.metrics() is last


def test_names_of_more_than_the_optimizer_has() -> None:
    one, other = two()
    optimizer = ingot.AdamW(one.parameters())
    optimizer.track_metrics(1, names=nn.Sequential(one, other))
    step(optimizer, one)
    assert list(optimizer.metrics()) == ["0.weight", "0.bias"]
