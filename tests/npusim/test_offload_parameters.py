"""Which parameters offload="cpu" takes, and what may happen to them: moved, edited, without gradients, refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from offload_pairs import SHAPES, assert_same_bits, give_both, make_pair, step, to_npu

from cases import CASES, Case, each_case
from training import assert_same, make_params, params_of, tensors_of

pytestmark = pytest.mark.usefixtures("pieces")


@each_case
def test_parameters_without_gradients_and_twice_in_the_list(case: Case) -> None:
    params = make_params(SHAPES)
    away_params = to_npu(params)
    with pytest.warns(UserWarning, match="duplicate"):
        away = case.make([*away_params, away_params[4]], lr=0.01, offload="cpu")
        near = case.make([*params, params[4]], lr=0.01)
    for number in range(4):
        give_both(away, near, number)
        for each in (away_params, params):
            each[number].grad = None
        away.step()
        near.step()
    assert_same_bits(away, near)


@each_case
def test_parameters_that_move(case: Case) -> None:
    away, near = make_pair(case, {"lr": 0.01}, torch.bfloat16, master_weights=True)
    step(away, near, 0)
    devices = ["npu", "cpu"]
    for number in range(1, 5):
        for param in params_of(away):  # what torch.nn.Module.to can do with the very parameter
            param.grad = None
            other = torch.nn.Parameter(param.detach().to(devices[number % 2]))
            torch.utils.swap_tensors(param, other)
        give_both(away, near, number)
        away.step()
        near.step()
    assert_same_bits(away, near)


@each_case
def test_parameters_on_the_cpu_are_treated_as_ever(case: Case) -> None:
    """Everything is on the host already: offload changes nothing, and the quick path is taken."""
    ours, theirs = make_params(SHAPES), make_params(SHAPES)
    offloaded, usual = case.make(ours, lr=0.01, offload="cpu"), case.make(theirs, lr=0.01)
    for number in range(6):
        for params, optimizer in ((ours, offloaded), (theirs, usual)):
            for param in params:
                param.grad = torch.full_like(param, 0.1 * (number + 1))
            optimizer.step()
    assert_same(tensors_of(offloaded), tensors_of(usual))
    assert (offloaded._quick is None) == (usual._quick is None)
    assert not offloaded._offload.mirrors  # type: ignore[union-attr]


def test_a_parameter_that_somebody_changed_wins_over_its_master_copy() -> None:
    away, near = make_pair(CASES["adamw"], {"lr": 0.01}, torch.bfloat16, master_weights=True)
    step(away, near, 0)
    for optimizer in (away, near):
        for param in params_of(optimizer):
            param.data.mul_(2)  # an edit that no version counter sees
    step(away, near, 1)
    assert_same_bits(away, near)


def test_a_dtensor_on_an_accelerator_is_refused_with_advice() -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("hccl", rank=0, world_size=1, store=dist.HashStore())
    try:
        mesh = dist.init_device_mesh("npu", (1,))
        whole = torch.nn.Parameter(distribute_tensor(torch.ones(4).npu(), mesh, [Replicate()]))
        with pytest.raises(ValueError, match=r"NpuFusedAdamW: a DTensor.*CPUOffloadPolicy"):
            CASES["adamw"].make([whole], offload="cpu")
        optimizer = CASES["adamw"].make([torch.nn.Parameter(torch.ones(2).npu())], offload="cpu")
        with pytest.raises(ValueError, match="CPUOffloadPolicy"):
            optimizer.add_param_group({"params": [whole]})
        assert len(optimizer.param_groups) == 1
    finally:
        dist.destroy_process_group()


class Marked(torch.nn.Parameter):
    """A subclass, which may mean anything."""


def test_other_subclasses_are_refused() -> None:
    with pytest.raises(ValueError, match="a Marked; offload='cpu' takes ordinary tensors"):
        CASES["sgd"].make([Marked(torch.ones(2).npu())], offload="cpu")


@pytest.mark.parametrize("wrong", ["gpu", "CPU", True, torch.device("cpu"), 0])
def test_wrong_values_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"offload.*None or 'cpu'"):
        CASES["adamw"].make([torch.nn.Parameter(torch.ones(2))], offload=wrong)
    with pytest.raises(TypeError, match="offload"):
        CASES["adamw"].make([torch.nn.Parameter(torch.ones(2))], offloading="cpu")
