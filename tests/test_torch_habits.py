"""What users of torch.optim rely on around a step: closures, hooks, copies, contexts, autograd, compile."""

import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from cases import CASES, Case, each_backend, each_case
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
def test_the_closure_runs_first_and_once(case: Case) -> None:
    net = small_model()
    optimizer = with_state(case, net.parameters())
    seen: list[Any] = []

    def closure() -> Tensor:
        seen.append([p.detach().clone() for p in net.parameters()])
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    start = [p.detach().clone() for p in net.parameters()]
    loss = optimizer.step(closure)
    assert len(seen) == 1
    assert all(torch.equal(a, b) for a, b in zip(seen[0], start, strict=True))
    assert loss.requires_grad
    optimizer.step(closure=closure)
    assert len(seen) == 2


@each_case
def test_step_and_state_hooks(case: Case) -> None:
    params = make_params()
    optimizer = with_state(case, params)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda o, a, k: calls.append("before step"))
    optimizer.register_step_post_hook(lambda o, a, k: calls.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before save"))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, s: {k: v for k, v in s.items() if k != "extra"}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("after load"))
    train(optimizer, params, 1)
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    optimizer.load_state_dict(saved)
    assert calls == ["before step", "after step", "before save", "after load"]


@each_case
def test_a_pre_hook_may_change_the_gradients(case: Case) -> None:
    params, copies = make_params(), make_params()
    hooked, plain = with_state(case, params), with_state(case, copies)

    def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
        for param in params:
            param.grad = param.grad / 2

    hooked.register_step_pre_hook(halve)
    for step in range(2):
        give_grads(params, step)
        give_grads(copies, step)
        for param in copies:
            param.grad = param.grad / 2
        hooked.step()
        plain.step()
    assert_same(tensors_of(hooked), tensors_of(plain))


def test_global_hooks() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls = []
    handle = register_optimizer_step_post_hook(lambda o, a, k: calls.append(type(o).__name__))
    try:
        for case in CASES.values():
            params = make_params()
            train(case.make(params), params, 1)
    finally:
        handle.remove()
    assert calls == [case.kind.__name__ for case in CASES.values()]


@each_backend
@each_case
def test_pickle_goes_on_with_the_same_numbers(case: Case, backend: str) -> None:
    params = make_params()
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, 2)
    copies, twin = pickle.loads(pickle.dumps((params, optimizer)))
    assert twin.param_groups[0]["params"][0] is copies[0]
    train(optimizer, params, 2, first=2)
    train(twin, copies, 2, first=2)
    assert_same(tensors_of(twin), tensors_of(optimizer))
    assert twin.backend == backend


@each_case
def test_the_optimizer_itself_can_be_saved(case: Case) -> None:
    params = make_params()
    optimizer = with_state(case, params)
    train(optimizer, params, 2)
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert_same(tensors_of(twin), tensors_of(optimizer))
    train(twin, [p for g in twin.param_groups for p in g["params"]], 1, first=2)


@each_case
def test_repr_lists_the_options(case: Case) -> None:
    text = repr(with_state(case, make_params(), lr=0.125))
    assert "\nBackend: native (chosen for cpu)\nStates: float32\n" in text
    kept = with_state(case, make_params(), backend="reference", state_dtype=torch.bfloat16)
    assert "\nBackend: reference\nStates: bfloat16\n" in repr(kept)
    assert text.startswith(f"{case.kind.__name__} (")
    assert "lr: 0.125" in text
    for name in set(case.signature) - {"lr", "momentum"}:
        assert f"{name}: {case.signature[name]}" in text


@each_case
def test_isinstance_of_torchs_optimizer(case: Case) -> None:
    optimizer = case.make(make_params())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.defaults["lr"] == optimizer.param_groups[0]["lr"]


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
