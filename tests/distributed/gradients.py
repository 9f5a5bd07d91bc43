"""The job of test_gradients.py: norms, clipping and states of split parameters."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
import torch.distributed as dist
from gradient_scaling import local_overflow, scaler, scalers_agree, stages_agree
from layouts import LAYOUTS, Layout, local
from matrix import Outcome, compare, outcomes
from meetings import raises_everywhere, stepped
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from cases import CASES, Case
from ingot.optim import NpuFusedAdamP, NpuFusedAdamW
from training import SHAPES, give_grads, make_params

NORMS = (2.0, 1.0, 3.0, torch.inf)


def clip(layout: Layout, dtype: torch.dtype) -> None:
    """Norms and clipped gradients are those of torch on whole tensors; ``.grad`` stays a DTensor."""
    for norm_type in NORMS if not dtype.is_complex else (2.0,):
        for max_norm in (0.5, 1e6):
            wholes = make_params(SHAPES, dtype)
            give_grads(wholes, 0)
            params = layout.params(wholes)
            for i, (param, whole) in enumerate(zip(params, wholes, strict=True)):
                assert whole.grad is not None
                param.grad = layout.lay_out(i, whole.grad)
            optimizer = NpuFusedAdamW(params)
            norm = optimizer.clip_grad_norm_fused_(max_norm, norm_type)
            filled = [whole for whole in wholes if whole.numel()]  # torch refuses maxima of nothing
            expected = torch.nn.utils.clip_grad_norm_(filled, max_norm, norm_type)
            near = 1e-2 if dtype is torch.bfloat16 else 2e-6
            assert type(norm) is Tensor
            torch.testing.assert_close(norm.double(), expected.double(), rtol=near, atol=0)
            for i, (param, whole) in enumerate(zip(params, wholes, strict=True)):
                assert param.grad is not None and whole.grad is not None
                torch.testing.assert_close(
                    local(param.grad), layout.cut(i, whole.grad), rtol=near, atol=1e-7
                )


def not_finite(layout: Layout) -> None:
    """Infinities and NaN of one shard reach the norms of all processes."""
    for bad in (torch.inf, torch.nan):
        for norm_type in NORMS:
            optimizer, params = stepped(NpuFusedAdamW, layout, 3)
            if layout.mesh.get_coordinate()[-1] == 0:  # one shard, in each of its copies
                part = local(params[2].grad)
                part[(0,) * part.ndim] = bad
            norm = optimizer.clip_grad_norm_fused_(1.0, norm_type)
            torch.testing.assert_close(norm, torch.tensor(bad), equal_nan=True)


def double_sums(layout: Layout) -> None:
    """Norms are added up in double precision: one large and many small squares."""
    wholes = [Parameter(torch.zeros(40, 50)) for _ in range(20)]
    params = layout.params(wholes)
    for i, (param, whole) in enumerate(zip(params, wholes, strict=True)):
        grad = torch.full_like(whole, 1e-3)
        grad[0, 0] = 100.0 if i == 0 else 1e-3
        param.grad = layout.lay_out(i, grad)
    exact = (100.0**2 + (40 * 50 * 20 - 1) * float(torch.tensor(1e-3)) ** 2) ** 0.5
    norm = NpuFusedAdamW(params).clip_grad_norm_fused_(1e9)
    assert abs(norm.item() - exact) < 1e-5


def states(layout: Layout, case: Case) -> None:
    """States are laid out as their parameter, survive a copy of the optimizer, change type and are loaded."""
    wholes = make_params([(5, 4), (7,), (3, 3)], torch.bfloat16)
    params = layout.params(wholes)
    optimizers = [
        case.make(params, lr=0.01),
        case.make(layout.params(wholes), lr=0.01, state_dtype="param"),
        case.make(layout.params(wholes), lr=0.01, master_weights=True),
    ]
    for step in range(3):
        give_grads(wholes, step)
        for optimizer in optimizers:
            for i, param in enumerate(optimizer.param_groups[0]["params"]):
                grad = wholes[i].grad
                assert grad is not None
                param.grad = layout.lay_out(i, grad)
            optimizer.step()
    for optimizer, dtype in zip(
        optimizers, (torch.float32, torch.bfloat16, torch.float32), strict=True
    ):
        for param in optimizer.param_groups[0]["params"]:
            for name, value in optimizer.state.get(param, {}).items():
                if name != "step":
                    assert value.dtype is dtype and value.shape == param.shape
                    assert getattr(value, "placements", 0) == getattr(param, "placements", 0)
    reload(layout, optimizers)


def reload(layout: Layout, optimizers: list) -> None:
    """A state of other types is converted; one of another layout is refused with nothing changed."""
    first, second, _ = optimizers
    saved = deepcopy(first.state_dict())
    second.load_state_dict(saved)
    for one, two in zip(
        first.param_groups[0]["params"], second.param_groups[0]["params"], strict=True
    ):
        for name, value in first.state.get(one, {}).items():
            loaded = second.state[two][name]
            if name == "step":
                assert loaded == value
            else:
                assert loaded.dtype is torch.bfloat16
                assert torch.equal(local(loaded), local(value).to(torch.bfloat16))
    if not saved["state"] or "exp_avg" not in saved["state"][0]:
        return
    if not isinstance(saved["state"][0]["exp_avg"], DTensor):
        return
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].full_tensor()
    try:
        second.load_state_dict(saved)
    except ValueError as error:
        assert "both must be DTensors or neither" in str(error)
    else:
        raise AssertionError("a whole tensor was loaded into a shard")


def unfinished_gradient() -> None:
    """A gradient whose own all-reduce is still under way is waited for."""
    layout = Layout("rows", 2)
    for kind in (NpuFusedAdamW, NpuFusedAdamP):
        results = []
        for unfinished in (True, False):
            param = layout.params(make_params([(4, 3)]))[0]
            mine = torch.arange(6.0).reshape(2, 3) - dist.get_rank()
            total = all_reduce(mine, "sum", (param.device_mesh, 0))
            assert isinstance(total, AsyncCollectiveTensor)
            grad = total if unfinished else total.wait()
            param.grad = DTensor.from_local(
                grad, param.device_mesh, param.placements, run_check=False
            )
            assert isinstance(param.grad._local_tensor, AsyncCollectiveTensor) == unfinished
            optimizer = kind([param], lr=0.1)
            assert [bucket.plain for bucket in optimizer._plan()] == [True]
            optimizer.step()
            results.append(local(param.detach()).clone())
        assert torch.equal(*results)


def changes() -> None:
    """A plan that is remembered from the last step does not outlive what it was made from."""
    for case in CASES.values():
        layout = Layout("mixed", 2)
        wholes = make_params([(5, 4), (7,), (3, 6), (2, 2)])
        options = {"lr": 0.01, "momentum": 0.9} if case.name == "sgd" else {"lr": 0.01}
        whole, split = case.make(wholes, **options), case.make(layout.params(wholes), **options)
        params = split.param_groups[0]["params"]
        for step in range(8):
            give_grads(wholes, step)
            if step == 6:
                wholes[2].grad = None
            for i, (param, one) in enumerate(zip(params, wholes, strict=True)):
                param.grad = None if one.grad is None else layout.lay_out(i, one.grad)
            if (
                step == 4
            ):  # another tensor in the place of a state, and of the local part of a parameter
                name = next(name for name in split.state[params[0]] if name != "step")
                split.state[params[0]][name] = split.state[params[0]][name].clone()
                params[2]._local_tensor = params[2]._local_tensor.clone()
            if step == 5:  # a gradient of another layout
                kept, params[0].grad = params[0].grad, layout.lay_out(2, wholes[0].grad)
                raises_everywhere(split.step, "placed as")
                params[0].grad = kept
            whole.step()
            split.step()
        compare(layout, split, whole)
        assert split._planner.memories


def gradients(rank: int, processes: int) -> Outcome:
    """The job."""
    checks: dict[str, Callable[[], None]] = {}
    for name in LAYOUTS[processes]:
        layout = Layout(name, processes)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
            checks[f"clip {name} {dtype}"] = partial(clip, layout, dtype)
        checks[f"double sums {name}"] = partial(double_sums, layout)
        if name in ("rows", "columns", "copies_x_rows"):
            checks[f"not finite {name}"] = partial(not_finite, layout)
            for stem, case in CASES.items():
                checks[f"scaler {name} {stem}"] = partial(scaler, layout, case)
        for stem, case in CASES.items():
            checks[f"states {name} {stem}"] = partial(states, layout, case)
    if processes == 2:
        checks["local overflow"] = partial(local_overflow, rank)
        checks["scalers agree"] = partial(scalers_agree, rank)
        checks["stages agree"] = partial(stages_agree, rank)
        checks["unfinished gradient"] = unfinished_gradient
        checks["changes"] = changes
    return outcomes(checks.items())
