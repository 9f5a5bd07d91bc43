"""The quick path: taken for steps like the last one, the same bits as the whole path, left at any difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from quick_steps import steady, whole_path
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cases import Case, each_case, each_setting
from ingot.step import quick as quick_path
from training import assert_same, give_grads, make_params, set_grad, tensors_of, train, with_state

# The last one is large enough for states in 8 bits.
SHAPES = [(7,), (4, 3), (), (33, 31), (2, 3, 2, 2), (65,), (67, 65)]
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float64": (torch.float64, {}),
    "bfloat16": (torch.bfloat16, {}),
    "float16 states": (torch.float32, {"state_dtype": torch.float16}),
    "bfloat16 states": (torch.float32, {"state_dtype": torch.bfloat16}),
    "8-bit states": (torch.float32, {"state_dtype": "8bit"}),
    "8-bit stochastic": (torch.bfloat16, {"state_dtype": "8bit", "rounding": "stochastic"}),
    "masters": (torch.bfloat16, {"master_weights": True}),
    "stochastic": (torch.bfloat16, {"rounding": "stochastic", "state_dtype": "param"}),
    "seeded": (torch.float16, {"rounding": "stochastic", "rounding_seed": 2**63 + 5}),
}


def both(
    case: Case, options: dict[str, Any], dtype: torch.dtype = torch.float32
) -> tuple[Any, Any, list[Tensor], list[Tensor]]:
    params, others = make_params(SHAPES, dtype), make_params(SHAPES, dtype)
    quick = case.make(params, backend="native", **options)
    return quick, whole_path(case.make(others, backend="native", **options)), params, others


@each_setting
def test_the_same_bits_as_the_whole_path(case: Case, options: dict[str, Any]) -> None:
    quick, whole, params, others = both(case, options)
    for optimizer, given in ((quick, params), (whole, others)):
        train(optimizer, given, 8)
    assert quick._quick is not None, "the quick path was not taken"
    assert whole._quick is None or whole._optimizer_step_post_hooks
    assert_same(tensors_of(quick), tensors_of(whole))
    assert (quick.grad_norm is None) == (whole.grad_norm is None)
    if quick.grad_norm is not None:
        assert torch.equal(quick.grad_norm, whole.grad_norm)


@each_case
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_bits_in_every_precision(case: Case, precision: str) -> None:
    dtype, options = PRECISIONS[precision]
    options = {"lr": 0.02, "max_grad_norm": 0.5, **options}
    quick, whole, params, others = both(case, options, dtype)
    for optimizer, given in ((quick, params), (whole, others)):
        train(optimizer, given, 8)
    assert quick._quick is not None, "the quick path was not taken"
    assert_same(tensors_of(quick), tensors_of(whole))


@each_case
def test_any_layout(case: Case) -> None:
    runs = []
    for hook in (False, True):
        wide = torch.arange(48.0).reshape(6, 8) / 48
        params = [Parameter(wide[:, ::2]), Parameter(torch.ones(5, 4).t())]
        optimizer = with_state(case, params, lr=0.02, backend="native")
        train(whole_path(optimizer) if hook else optimizer, params, 6)
        assert hook or optimizer._quick is not None
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def shared(param: Tensor) -> None:
    param.share_memory_()


def set_elsewhere(param: Tensor) -> None:
    with torch.no_grad():
        param.set_(param.detach().clone())


def data_elsewhere(param: Tensor) -> None:
    param.data = param.data.clone()


def storage_elsewhere(param: Tensor) -> None:
    kept = param.detach().clone()
    param.untyped_storage().resize_(0)
    param.untyped_storage().resize_(kept.nbytes)
    param.data.copy_(kept)


def swapped(param: Tensor) -> None:
    other = Parameter(param.detach().clone())
    other.grad = param.grad
    torch.utils.swap_tensors(param, other)


@each_case
@pytest.mark.parametrize(
    "move", [shared, set_elsewhere, data_elsewhere, storage_elsewhere, swapped]
)
def test_memory_that_moves_without_a_word(case: Case, move: Callable[[Tensor], None]) -> None:
    """These change an address and count no version; what is at the new address is what counts."""
    runs = []
    for moving in (True, False):
        params: list[Tensor] = [
            Parameter(torch.linspace(-1, 1, 24).reshape(4, 6)),
            Parameter(torch.ones(5)),
        ]
        optimizer = with_state(case, params, lr=0.05)
        for step in range(8):
            give_grads(params, step)
            if moving and step in (4, 6):
                move(params[0])
            optimizer.step()
        runs.append([param.detach().clone() for param in params])
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_hooks_that_come_later_run() -> None:
    optimizer, _ = steady()
    seen: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: seen.append("before")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("all")),
    ]
    optimizer.step()
    assert sorted(seen) == ["after", "all", "before"]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(seen) == 3


def test_the_profiler_sees_steps() -> None:
    optimizer, _ = steady()
    with torch.profiler.profile() as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = {event.name for event in profile.events()}
    assert "Optimizer.step#NpuFusedAdamW.step" in names
    assert "Optimizer.zero_grad#NpuFusedAdamW.zero_grad" in names


def test_a_closure_is_called() -> None:
    optimizer, param = steady()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert optimizer.state[param]["step"] == 5


@pytest.mark.parametrize(
    ("option", "value"),
    [("lr", float("nan")), ("lr", -1.0), ("lr", "0.1"), ("eps", -1.0), ("betas", (1, 2, 3))],
)
def test_nonsense_set_later_is_refused(option: str, value: Any) -> None:
    optimizer, param = steady()
    before = param.detach().clone()
    kept = optimizer.param_groups[0][option]
    optimizer.param_groups[0][option] = value
    with pytest.raises(ValueError, match=option):
        optimizer.step()
    assert torch.equal(param, before) and optimizer.state[param]["step"] == 4
    optimizer.param_groups[0][option] = kept
    optimizer.step()
    assert optimizer.state[param]["step"] == 5


def test_zero_grad_forgets_gradients() -> None:
    optimizer, param = steady()
    optimizer.zero_grad()
    assert param.grad is None
    set_grad(param, torch.ones(3))
    optimizer.zero_grad(set_to_none=False)
    assert param.grad is not None and not param.grad.any()


def test_without_a_closure_is_as_none_given() -> None:
    """As Accelerate does; after a step with a closure nothing is remembered, as the next will have one, too."""
    optimizer, param = steady()
    taken = optimizer._quick
    optimizer.step(None)
    assert optimizer._quick is taken
    assert optimizer.step(lambda: 3) == 3 and optimizer._quick is None
    optimizer.step()
    assert optimizer._quick is not None and optimizer.state[param]["step"] == 7


def test_versions_are_counted() -> None:
    optimizer, param = steady()
    version = param._version
    optimizer.step()
    assert param._version == version + 1


@pytest.mark.parametrize("guard", ["torch's guard", "one by one"])
@pytest.mark.parametrize("kind", [torch._neg_view, torch.Tensor.to_sparse, Parameter])
def test_a_gradient_of_another_kind_is_seen(
    kind: Callable[[Tensor], Tensor], guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without what a torch may not have: the check that torch.compile makes."""
    if guard == "one by one":
        monkeypatch.setattr(quick_path, "guard_of", lambda tensors, layout: None)
    optimizer, param = steady()
    taken = optimizer._quick
    assert taken.step(taken.plan, vars(optimizer)) is True
    before = param.detach().clone()
    param.grad = kind(torch.ones(3))
    assert taken.step(taken.plan, vars(optimizer)) is (kind is Parameter)
    assert torch.equal(param, before) is not (kind is Parameter)


def test_it_is_taken_in_inference_mode() -> None:
    """Ordinary tensors may be updated there; the check of torch.compile says no, and each gradient is asked."""
    optimizer, param = steady()
    taken, before = optimizer._quick, param.detach().clone()
    with torch.inference_mode():
        set_grad(param, torch.ones(3))
        assert taken.step(taken.plan, vars(optimizer)) is True
    assert not torch.equal(param, before)
