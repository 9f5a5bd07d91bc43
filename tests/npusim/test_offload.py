"""States in host memory (offload="cpu"): the numbers of an optimizer that is not offloaded, not a bit less."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from offload_pairs import assert_same_bits, make_pair, step, to_npu

from cases import CASES, Case, Options, each_case, each_setting
from ingot.optimizer import FusedOptimizer
from training import assert_same, make_params, params_of, tensors_of, through_a_file

pytestmark = pytest.mark.usefixtures("pieces")


@each_setting
def test_every_setting(case: Case, options: Options) -> None:
    away, near = make_pair(case, options)
    for number in range(5):
        step(away, near, number)
    assert_same_bits(away, near)
    if near.grad_norm is not None:
        assert away.grad_norm is not None and away.grad_norm.equal(near.grad_norm)


@each_setting
def test_metrics_are_those_of_the_device(case: Case, options: Options) -> None:
    away, near = make_pair(case, options)
    for optimizer in (away, near):
        optimizer.track_metrics(every=2)
    for number in range(4):
        step(away, near, number)
    assert_same_bits(away, near)
    assert away.metrics().as_dict() == near.metrics().as_dict() and away.metrics().step == 4


PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float64": (torch.float64, {}),
    "bfloat16": (torch.bfloat16, {}),
    "float16": (torch.float16, {}),
    "complex64": (torch.complex64, {}),
    "master weights": (torch.bfloat16, {"master_weights": True}),
    "16-bit states": (torch.float32, {"state_dtype": torch.bfloat16}),
    "8-bit states": (torch.float32, {"state_dtype": "8bit"}),
    "master weights, 8-bit states": (
        torch.bfloat16,
        {"master_weights": True, "state_dtype": "8bit"},
    ),
    "stochastic": (torch.bfloat16, {"state_dtype": "param", "rounding": "stochastic"}),
    "stochastic 8-bit": (torch.bfloat16, {"state_dtype": "8bit", "rounding": "stochastic"}),
}
each_precision = pytest.mark.parametrize(
    ("dtype", "more"), PRECISIONS.values(), ids=PRECISIONS.keys()
)


@each_case
@each_precision
def test_every_precision(case: Case, dtype: torch.dtype, more: dict[str, Any]) -> None:
    away, near = make_pair(case, {"lr": 0.01}, dtype, **more)
    for number in range(4):
        step(away, near, number)
    assert_same_bits(away, near)


@each_case
@pytest.mark.parametrize("backend", ["lists", "reference"])
def test_without_the_native_core(case: Case, backend: str) -> None:
    away, near = make_pair(case, {"lr": 0.01}, backend=backend)
    for number in range(3):
        step(away, near, number)
    assert_same_bits(away, near)


@each_case
@pytest.mark.parametrize(
    "more",
    [{}, {"master_weights": True}, {"state_dtype": "8bit"}],
    ids=["plain", "master weights", "8-bit states"],
)
def test_states_go_on_in_an_optimizer_that_is_not_offloaded_and_back(
    case: Case, more: dict[str, Any]
) -> None:
    away, near = make_pair(case, {"lr": 0.01}, torch.bfloat16, **more)
    for number in range(2):
        step(away, near, number)
    saved = through_a_file(away.state_dict())
    for slots in saved["state"].values():
        assert all(value.device.type == "cpu" for value in slots.values())
    other = case.make(to_npu(params_of(away)), lr=0.01, **more)
    other.load_state_dict(saved)
    tensors = tensors_of(other)
    assert {t.device.type for n, t in tensors.items() if not n.startswith("step")} == {"npu"}
    assert_same({n: t.cpu() for n, t in tensors.items()}, tensors_of(near))

    back = case.make(to_npu(params_of(near)), lr=0.01, **more, offload="cpu")
    back.load_state_dict(other.state_dict())
    assert_same_bits(back, near)
    for number in range(2, 4):
        step(back, near, number)
    assert_same_bits(back, near)


@each_case
def test_loading_after_steps_copying_and_new_groups(case: Case) -> None:
    away, near = make_pair(case, {"lr": 0.01})
    step(away, near, 0)
    saved = copy.deepcopy(away.state_dict())
    step(away, near, 1)
    for optimizer in (away, near):
        optimizer.load_state_dict(saved)
    step(away, near, 2)
    assert_same_bits(away, near)

    away, near = copy.deepcopy(away), copy.deepcopy(near)
    step(away, near, 3)
    assert_same_bits(away, near)

    more = make_params([(5, 4)], seed=1)
    away.add_param_group({"params": to_npu(more), "lr": 0.1})
    near.add_param_group({"params": more, "lr": 0.1})
    for number in range(4, 6):
        step(away, near, number)
    assert_same_bits(away, near)


def scaled_training(optimizer: FusedOptimizer, device: str, scaler: Any) -> list[float]:
    """Steps with a scaler, one of them with an overflow; the scales."""
    scales = []
    for number in range(4):
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for index, param in enumerate(params_of(optimizer)):
            factor = torch.full(param.shape, float("inf") if number == 2 else 0.1 * (index + 1))
            loss = loss + (param * factor.to(device)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@each_case
@pytest.mark.parametrize("clip", [{}, {"max_grad_norm": 0.5}], ids=["", "clipped"])
def test_gradient_scaling(case: Case, clip: dict[str, Any]) -> None:
    import torch_npu

    scalers = [torch.amp.GradScaler("npu"), torch_npu.npu.amp.GradScaler()]
    for scaler in scalers:
        away, near = make_pair(case, {"lr": 0.01, **clip})
        theirs = torch.amp.GradScaler("cpu", init_scale=scaler.get_scale())
        assert scaled_training(away, "npu", scaler) == scaled_training(near, "cpu", theirs)
        assert_same_bits(away, near)


def test_norm_group_on_one_process() -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("hccl", rank=0, world_size=1, store=store)
    try:
        away, near = make_pair(CASES["adamw"], {"lr": 0.01, "max_grad_norm": 0.1})
        away.norm_group = near.norm_group = dist.group.WORLD
        for number in range(2):
            step(away, near, number)
        rtol = 1e-5  # sums over processes are made in float32 for an NPU
        assert away.grad_norm is not None and near.grad_norm is not None
        assert away.grad_norm.item() == pytest.approx(near.grad_norm.item(), rel=rtol)
        ours = {name: tensor.cpu() for name, tensor in tensors_of(away).items()}
        assert_same(ours, tensors_of(near), rtol=rtol, atol=1e-7)
    finally:
        dist.destroy_process_group()


@each_case
@pytest.mark.parametrize("more", [{}, {"state_dtype": "8bit"}], ids=["", "8-bit states"])
def test_released_gradients(case: Case, more: dict[str, Any]) -> None:
    """The step inside backward, made on the host: the numbers of an ordinary step, and no gradient left."""
    off = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    away, near = make_pair(case, {"lr": 0.01, **off}, **more)
    with away.release_gradients():
        for number in range(4):
            step(away, near, number)
            assert all(param.grad is None for param in params_of(away))
    assert_same_bits(away, near)
    step(away, near, 4)
    assert_same_bits(away, near)
