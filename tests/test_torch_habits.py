"""What users of torch.optim rely on around a step: closures, hooks, copies, pickles."""

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from cases import CASES, Case, each_backend, each_case
from training import (
    assert_same,
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
