"""Steps in what torch puts around them: no_grad, inference mode, autograd, compile, default devices, fake tensors."""

import warnings

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from cases import Case, each_backend, each_case
from ingot.backends import native
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
