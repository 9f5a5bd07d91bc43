"""PyTorch's conditions: which tensors a step takes, and that every backend does the same with them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from conditions import build, each_info, each_input, loss_of, problem, train
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal.common_optimizers import OptimizerInfo

from cases import BACKENDS, each_backend, each_fused_backend
from ingot.backends.reference import BUFFERS
from training import assert_same, assert_unchanged, picture, tensors_of

# Backends order the same operations differently: a few roundings in each of seven steps.
NEAR = {torch.float32: 1e-6, torch.float64: 2e-15}


def assorted(dtype: torch.dtype) -> list[Parameter]:
    """Tensors of all sizes: the kinds that torch compares its loops and lists with."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 3), (), (1,), (0,), (4, 0), (7, 5, 3), (129,)]
    params = [Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
    params += [
        Parameter(torch.randn(6, 4, generator=generator, dtype=dtype).t()),
        Parameter(torch.randn(6, 8, generator=generator, dtype=dtype)[:, ::2]),
        Parameter(
            torch.randn(2, 3, 4, 5, generator=generator, dtype=dtype).to(
                memory_format=torch.channels_last
            )
        ),
    ]
    return params


def give(params: list[Parameter], step: int, some: bool) -> None:
    """Gradients of a step; of some only, and of other strides, if told so."""
    generator = torch.Generator().manual_seed(100 + step)
    for number, param in enumerate(params):
        grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)
        if some and number % 3 == step % 3:
            param.grad = None
        elif some and param.ndim == 2:
            param.grad = grad.t().contiguous().t()
        else:
            param.grad = grad


@each_input
@each_fused_backend
@pytest.mark.parametrize("some", [False, True], ids=["all", "some without gradient"])
def test_backends_agree(info: OptimizerInfo, given: Any, backend: str, some: bool) -> None:
    """Torch's test of lists against loops: here, every backend against the reference, with every state."""
    for dtype, near in NEAR.items():
        runs = []
        for name in ("reference", backend):
            params = assorted(dtype)
            optimizer = info.optim_cls(params, **deepcopy(given.kwargs), backend=name)
            for step in range(7):
                give(params, step, some)
                optimizer.step()
            runs.append(tensors_of(optimizer))
        # The buffer of RMSprop adds up updates of either sign, as large as 10: a last bit shows where they cancel.
        sums_updates = "RMSprop" in info.optim_cls.__name__ and given.kwargs.get("momentum")
        assert_same(runs[1], runs[0], rtol=near, atol=near * (10 if sums_updates else 1))


@each_info
@each_fused_backend
def test_mixed_types_in_one_group(info: OptimizerInfo, backend: str) -> None:
    runs = []
    for name in ("reference", backend):
        params = [*assorted(torch.float32)[:3], *assorted(torch.float64)[:3]]
        params += assorted(torch.bfloat16)[:3]
        optimizer = build(info, params, lr=0.01, backend=name)
        for step in range(5):
            give(params, step, some=False)
            optimizer.step()
        runs.append(tensors_of(optimizer))
    # bfloat16 results may round to the neighbour: 2^-8 of the value.
    for name, value in runs[1].items():
        near = 2**-7 if value.dtype is torch.bfloat16 else 1e-6
        torch.testing.assert_close(value, runs[0][name], rtol=near, atol=1e-6)


@each_input
@each_backend
def test_complex_parameters_are_pairs_of_real_ones(
    info: OptimizerInfo, given: Any, backend: str
) -> None:
    """One complex vector and its real view train alike, through losses with complex results."""
    for dtype in (torch.complex64, torch.complex128):
        generator = torch.Generator().manual_seed(5)
        values = torch.randn(6, generator=generator, dtype=dtype)
        whole, pairs = (
            Parameter(values.clone()),
            Parameter(torch.view_as_real(values).reshape(-1).clone()),
        )
        optimizers = [
            info.optim_cls([p], **deepcopy(given.kwargs), backend=backend) for p in (whole, pairs)
        ]
        for step in range(4):
            target = torch.randn(6, generator=generator, dtype=dtype)
            for param, optimizer in zip((whole, pairs), optimizers, strict=True):
                optimizer.zero_grad()
                number = param if param.is_complex() else torch.view_as_complex(param.reshape(6, 2))
                ((number - target).abs().square().sum() + step * number.real.sum()).backward()
                optimizer.step()
        near = 1e-6 if dtype is torch.complex64 else 1e-14
        together = torch.view_as_real(whole.detach()).reshape(-1)
        torch.testing.assert_close(together, pairs.detach(), rtol=near, atol=near)


@each_input
@each_backend
def test_nothing_to_do_is_nothing_done(info: OptimizerInfo, given: Any, backend: str) -> None:
    """Before any backward; with gradients that are all None; with parameters that need none."""
    weight, bias, data = problem()
    optimizer = info.optim_cls([weight, bias], **deepcopy(given.kwargs), backend=backend)
    before = picture(optimizer)
    optimizer.step()
    assert_unchanged(optimizer, before)
    assert not optimizer.state
    bias.requires_grad_(False)
    frozen = bias.detach().clone()
    train(optimizer, weight, bias, data, steps=2)
    assert torch.equal(bias, frozen) and bias not in optimizer.state
    optimizer.zero_grad()
    before = picture(optimizer)
    optimizer.step()
    assert_unchanged(optimizer, before)


@each_info
@each_backend
def test_zero_gradients_without_decay_move_nothing(info: OptimizerInfo, backend: str) -> None:
    """A first step with zero gradients: counted, and no parameter moves."""
    params = assorted(torch.float32)
    optimizer = build(info, params, weight_decay=0.0, backend=backend)
    start = [param.detach().clone() for param in params]
    for _ in range(2):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(start, params, strict=True))
    assert all(int(slots.get("step", 2)) == 2 for slots in optimizer.state.values())


@each_info
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(info: OptimizerInfo, set_to_none: bool) -> None:
    """Both ways train alike; without None the gradient tensors stay the same objects."""
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias])
    loss_of(weight, bias, data).backward()
    grads = [weight.grad, bias.grad]
    optimizer.zero_grad(set_to_none)
    if set_to_none:
        assert weight.grad is None and bias.grad is None
    else:
        assert weight.grad is grads[0] and bias.grad is grads[1]
        assert not weight.grad.any() and weight.grad.grad_fn is None


@each_info
@each_backend
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_type_changes_nothing(
    info: OptimizerInfo, backend: str, default: torch.dtype
) -> None:
    """States, steps and results do not depend on torch.set_default_dtype."""
    runs = []
    for changed in (False, True):
        params = assorted(torch.float32)
        try:
            torch.set_default_dtype(default if changed else torch.float32)
            optimizer = build(info, params, lr=0.01, max_grad_norm=0.5, backend=backend)
            for step in range(3):
                give(params, step, some=False)
                optimizer.step()
            optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
            give(params, 3, some=False)
            optimizer.step()
            runs.append((tensors_of(optimizer), optimizer.state_dict()["state"]))
        finally:
            torch.set_default_dtype(torch.float32)
    for number, slots in runs[0][1].items():
        for name, value in slots.items():
            assert runs[1][1][number][name].dtype is value.dtype
    assert_same(runs[1][0], runs[0][0])


@each_info
def test_sparse_gradients_are_refused(info: OptimizerInfo) -> None:
    param = Parameter(torch.ones(3))
    optimizer = build(info, [param])
    param.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,), check_invariants=True)
    before = param.detach().clone()
    with pytest.raises(RuntimeError, match=f"{info.name} does not support sparse gradients"):
        optimizer.step()
    assert torch.equal(param, before) and not optimizer.state


def peak_of(run: Callable[[], Any]) -> int:
    """The most bytes of tensors that were allocated at one time beyond those that were there, while it ran."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    used = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        used += event.nbytes()
        peak = max(peak, used)
    return peak


@each_info
@pytest.mark.parametrize("backend", BACKENDS)
def test_peak_memory(info: OptimizerInfo, backend: str) -> None:
    """A later step of the native core needs nothing, the reference a few buffers of one tensor of the sixteen.

    Others may copy parameters, gradients and states, and need two buffers to compute in.
    """
    params = [Parameter(torch.ones(64, 128)) for _ in range(16)]
    optimizer = build(info, params, lr=0.01, backend=backend)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones(64, 128)
        optimizer.step()
    size = sum(param.nbytes for param in params)
    held = len([v for v in optimizer.state[params[0]].values() if isinstance(v, Tensor)])
    two_pass = info.optim_cls.spec.finish is not None  # updates in one piece beside the buffers
    allowed = {"native": 0.01, "reference": BUFFERS / 16}.get(backend, held + 4.2 + two_pass)
    assert peak_of(lambda: torch.ones(64, 128)) >= params[0].nbytes  # the measure works
    assert peak_of(optimizer.step) <= allowed * size
