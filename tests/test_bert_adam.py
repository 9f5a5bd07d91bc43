"""BertAdam's two spellings of the decay rates, its rates, and its warm-up that has no effect."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from cases import CASES, each_backend
from ingot.optim import NpuFusedBertAdam
from training import (
    assert_same,
    assert_unchanged,
    make_params,
    params_of,
    picture,
    tensors_of,
    train,
)

BERT = CASES["bert_adam"]


def rates(group: dict[str, Any]) -> tuple[Any, ...]:
    assert tuple(group["betas"]) == (group["b1"], group["b2"])
    return tuple(group["betas"])


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
@each_backend
def test_schedulers_that_move_the_momentum(kind: str, backend: str) -> None:
    """With their defaults; the momentum they set is the one of the step, as if b1 had been set by hand."""
    params, same = make_params(), make_params()
    driven, by_hand = (BERT.make(each, lr=0.02, backend=backend) for each in (params, same))
    arguments = [0.1, 10] if kind == "OneCycleLR" else [0.001, 0.1, 2]
    schedule = getattr(lr_scheduler, kind)(driven, *arguments)
    theirs = torch.optim.AdamW(make_params(), lr=0.02)
    expected = getattr(lr_scheduler, kind)(theirs, *arguments)
    seen = []
    for step in range(6):
        group = driven.param_groups[0]
        assert rates(group) == tuple(theirs.param_groups[0]["betas"])
        seen.append(group["b1"])
        by_hand.param_groups[0]["lr"] = group["lr"]
        by_hand.param_groups[0]["b1"] = group["betas"][0]
        train(driven, params, 1, first=step)
        train(by_hand, same, 1, first=step)
        schedule.step()
        expected.step()
    assert_same(tensors_of(driven), tensors_of(by_hand))
    assert len(set(seen)) >= 3


def test_either_spelling_may_be_written() -> None:
    group = BERT.make(make_params()).param_groups[0]
    assert rates(group) == (0.9, 0.999)
    group["b1"] = 0.5
    assert rates(group) == (0.5, 0.999)
    group["betas"] = (0.6, 0.7)
    assert rates(group) == (0.6, 0.7)
    group.update(b2=0.8)
    assert rates(group) == (0.6, 0.8)
    group |= {"betas": [0.1, 0.2]}
    assert rates(group) == (0.1, 0.2)
    assert group.setdefault("betas", (0.3, 0.4)) == [0.1, 0.2]


@each_backend
def test_the_written_betas_are_used(backend: str) -> None:
    runs = []
    for write in ({"betas": (0.5, 0.6)}, {"b1": 0.5, "b2": 0.6}):
        params = make_params()
        optimizer = BERT.make(params, backend=backend)
        train(optimizer, params, 2)
        optimizer.param_groups[0].update(write)
        train(optimizer, params, 2, first=2)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"]
)
def test_copies_keep_both_spellings_together(copied: Any) -> None:
    group = copied(BERT.make(make_params(), b1=0.5)).param_groups[0]
    assert rates(group) == (0.5, 0.999)
    group["betas"] = (0.6, 0.7)
    assert rates(group) == (0.6, 0.7)


def test_checkpoints_keep_both_spellings_together() -> None:
    source, target = BERT.make(make_params(), b1=0.5), BERT.make(make_params(), betas=(0.1, 0.2))
    saved = source.state_dict()
    assert type(saved["param_groups"][0]) is dict
    target.load_state_dict(saved)
    assert rates(target.param_groups[0]) == (0.5, 0.999)
    del saved["param_groups"][0]["betas"]  # as torch_npu saves it
    saved["param_groups"][0]["b2"] = 0.75
    target.load_state_dict(saved)
    assert rates(target.param_groups[0]) == (0.5, 0.75)
    target.param_groups[0]["betas"] = (0.6, 0.7)
    assert rates(target.param_groups[0]) == (0.6, 0.7)
    saved["param_groups"][0]["betas"] = (0.3, 0.3)
    before = picture(target)
    with pytest.raises(ValueError, match=r"NpuFusedBertAdam: group 0 .*differ"):
        target.load_state_dict(saved)
    assert_unchanged(target, before)


def test_groups_take_either_spelling() -> None:
    one, two = make_params([(3,), (2,)])
    groups = [{"params": [one], "b1": 0.5}, {"params": [two], "betas": (0.6, 0.7)}]
    optimizer = BERT.make(groups, betas=(0.1, 0.2))
    assert [rates(group) for group in optimizer.param_groups] == [(0.5, 0.2), (0.6, 0.7)]


def test_check_finds_a_difference() -> None:
    """Only a plain dictionary, put in the place of a group, can have one."""
    group = dict(BERT.make(make_params()).param_groups[0])
    for wrong in ({"b1": 0.5}, {"betas": (0.5, 0.6)}, {"betas": 3}, {"betas": (0.9, 0.9, 0.9)}):
        with pytest.raises(ValueError, match="betas"):
            NpuFusedBertAdam.check({**group, **wrong})


def test_get_lr_after_touching_the_state() -> None:
    """Looking at the state of a parameter makes an empty entry: no step was made yet."""
    params = make_params([(3,), (2, 2)])
    optimizer = BERT.make(params, lr=0.5, warmup=0.5, t_total=4)
    assert optimizer.state[params[0]] == {}
    assert optimizer.get_lr() == [0.0, 0.0]
    optimizer.state[params[1]]["ema"] = 1
    assert optimizer.get_lr() == [0.0, 0.0] and len(optimizer.state) == 2
    train(optimizer, params, 1)
    assert optimizer.get_lr() == [0.25, 0.25]


def test_a_warm_up_without_a_total_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match="NpuFusedBertAdam: warmup=0.1 has no effect without t_total"
    ):
        optimizer = BERT.make(make_params(), warmup=0.1)
    with pytest.warns(UserWarning, match="warmup=0.2 has no effect"):
        optimizer.add_param_group({"params": make_params([(3,)]), "warmup": 0.2})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, {"warmup": -1}, {"warmup": 0}, {"warmup": 0.1, "t_total": 10}):
            BERT.make(make_params(), **options)
        optimizer.add_param_group({"params": make_params([(4,)]), "t_total": 10})
    assert len(params_of(optimizer)) == 13
