"""Steps in what torch puts around them: no_grad, inference mode, autograd, compile, default devices, fake tensors."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from cases import CASES, Case, each_backend, each_case
from ingot import selftest
from ingot.backends import REFERENCE, native
from training import (
    assert_same,
    fit,
    give_grads,
    make_params,
    small_model,
    tensors_of,
    train,
    with_state,
)


@each_case
def test_inside_no_grad_and_after_inference(case: Case) -> None:
    params, copies = make_params(), make_params()
    one, two = with_state(case, params), with_state(case, copies)
    for step in range(2):
        give_grads(params, step)
        give_grads(copies, step)
        with torch.no_grad():
            one.step()
            assert not torch.is_grad_enabled()
        two.step()
        assert torch.is_grad_enabled()
    assert_same(tensors_of(one), tensors_of(two))
    with torch.inference_mode():
        assert optimizer_works_in_inference_mode(case)


def optimizer_works_in_inference_mode(case: Case) -> bool:
    """Ordinary parameters may be updated in inference mode, as torch.optim does."""
    with torch.inference_mode(False):
        params = make_params([(3,)])
        give_grads(params, 0)
        optimizer = with_state(case, params, lr=0.5)
    before = params[0].tolist()
    optimizer.step()
    first = params[0].tolist()
    with torch.inference_mode(False):
        give_grads(params, 1)
        optimizer.step()
    return before != first != params[0].tolist()


@each_backend
@each_case
def test_autograd_notices_the_change(case: Case, backend: str) -> None:
    """A step between forward and backward must not go unnoticed."""
    param = Parameter(torch.randn(5))
    optimizer = with_state(case, [param], lr=0.1, backend=backend)
    param.grad = torch.ones(5)
    loss = (param * param).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_backend
@each_case
def test_parameters_stay_leaves_without_graph(case: Case, backend: str) -> None:
    net = small_model()
    optimizer = with_state(case, net.parameters(), backend=backend)
    fit(net, optimizer, 2)
    for param in net.parameters():
        assert param.is_leaf and param.requires_grad and param.grad_fn is None
        for value in optimizer.state[param].values():
            assert not isinstance(value, Tensor) or not value.requires_grad


@each_case
def test_torch_compile_around_a_training_step(case: Case) -> None:
    """A graph break at the step is fine; other numbers are not."""
    results = []
    for compiled in (False, True):
        net = small_model()
        optimizer = with_state(case, net.parameters(), lr=0.05)

        def train_step(data: Tensor, net=net, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = net(data).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        torch._dynamo.reset()
        run = torch.compile(train_step, backend="eager") if compiled else train_step
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                run(torch.randn(6, 4))
        results.append(tensors_of(optimizer))
    assert_same(results[1], results[0])


@each_case
@each_backend
def test_the_default_device_is_not_used(case: Case, backend: str) -> None:
    """What a step makes for itself belongs where the parameters are, not where new tensors go."""
    settings = {"max_grad_norm": 0.1, "rounding": "stochastic", "backend": backend}
    every = make_params(dtype=torch.bfloat16), make_params(dtype=torch.bfloat16)
    optimizers = [with_state(case, params, **settings) for params in every]
    train(optimizers[0], every[0], 3)
    for step in range(3):
        give_grads(every[1], step)
        with torch.device("meta"):
            native._unavailable.cache_clear()
            optimizers[1].step()
    with torch.device("meta"):
        saved = optimizers[1].state_dict()
        norm = optimizers[1].clip_grad_norm_fused_(1e-3, norm_type=3)
    assert norm.device.type == "cpu"
    assert_same(tensors_of(optimizers[0]), tensors_of(optimizers[1]))
    optimizers[0].load_state_dict(saved)
    assert_same(tensors_of(optimizers[0]), tensors_of(optimizers[1]))


@pytest.fixture
def bfloat16_by_default() -> Iterator[None]:
    """What torch makes without being told a type is bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


@each_case
@each_backend
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16, "8bit"], ids=str)
def test_the_default_type_is_not_used(
    case: Case, backend: str, state_dtype: Any, bfloat16_by_default: None
) -> None:
    """Numbers that a step makes for itself have the type of the math, not the one of new tensors."""
    settings = {"max_grad_norm": 0.1, "backend": backend, "state_dtype": state_dtype}
    runs: list[Any] = []
    for default in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(default)
        native._unavailable.cache_clear()
        params = make_params([(70, 70), (5,), ()])
        optimizer = with_state(case, params, **settings)
        optimizer.track_metrics(1)
        train(optimizer, params, 3)
        give_grads(params, 3)
        every = {"in the step": optimizer.grad_norm, **tensors_of(optimizer)}
        for kind in (2, 3, torch.inf):
            every[f"norm {kind}"] = optimizer.clip_grad_norm_fused_(1e-3, norm_type=kind)
        optimizer.load_state_dict(optimizer.state_dict(dtype=torch.float32))
        every.update((f"loaded {name}", value) for name, value in tensors_of(optimizer).items())
        numbers = optimizer.metrics().as_dict()
        runs.append((every, numbers))
    assert_same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def mixed_params() -> list[Tensor]:
    """One parameter for the native core, and one that it leaves to others: their norms are of two kinds."""
    whole, special = make_params([(5, 3), (7,)])
    return [whole, Parameter(special.detach().as_subclass(Special))]


class Special(Tensor):
    """A subclass is updated by the reference backend."""


def test_a_norm_over_several_backends(bfloat16_by_default: None) -> None:
    """It is exact, and made where the gradients are."""
    found = []
    for backend in (None, "reference"):
        params = mixed_params()
        optimizer = CASES["adamw"].make(params, max_grad_norm=0.1, backend=backend)
        give_grads(params, 0)
        with torch.device("meta"):
            optimizer.step()
        assert optimizer.grad_norm is not None
        found.append((optimizer.grad_norm, tensors_of(optimizer)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)
    assert_same(found[0][1], found[1][1], rtol=1e-6, atol=1e-7)


def test_the_largest_of_no_gradients_is_a_double(bfloat16_by_default: None) -> None:
    """Where other processes have gradients, the norm over all of them is given back in this type."""
    with torch.device("meta"):
        largest = REFERENCE.largest([])
    assert largest.dtype is torch.float64 and largest.device.type == "cpu" and largest == 0


def test_the_numbers_of_the_selftest(bfloat16_by_default: None) -> None:
    """They are the same in every session, whatever its defaults are."""
    with torch.device("meta"):
        drawn = selftest.make_params("cpu", [(70,)])
    assert drawn[0].dtype is torch.float32 and len(drawn[0].detach().unique()) == 70


@each_case
def test_steps_on_fake_tensors(case: Case) -> None:
    """As torch.optim makes them: nothing is computed, shapes and step counts go on."""
    with FakeTensorMode():
        params = [Parameter(torch.empty(shape)) for shape in ((4, 3), (5,))]
        optimizer = with_state(case, params, lr=0.1)
        for _ in range(3):
            for param in params:
                param.grad = torch.empty_like(param)
            optimizer.step()
    for param in params:
        states = [v for v in optimizer.state[param].values() if isinstance(v, torch.Tensor)]
        assert states and all(state.shape == param.shape for state in states)
