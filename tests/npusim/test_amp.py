"""The gradient scaler of the stand-in: moving and fixed scales, overflows, float16 gradients."""

from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import OptState

import ingot.optim
from ingot.npusim.amp import GradScaler, autocast


class HandsItselfOver(GradScaler):
    """Calls an optimizer that unscales by itself as torch_npu's scaler does on hardware."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        assert optimizer._step_supports_amp_scaling
        self._check_scale_growth_tracker("step")
        record = self._per_optimizer_states[id(optimizer)]
        result = optimizer.step(*args, **kwargs, grad_scaler=self)
        record["stage"] = OptState.STEPPED
        return result


SCALERS = [GradScaler, HandsItselfOver]
each_scaler = pytest.mark.parametrize("kind", SCALERS)
CLASSES = [getattr(ingot.optim, name) for name in ingot.optim.__all__]


def make_params(device: str = "npu") -> list[torch.Tensor]:
    """Parameters of both types, one of them without a gradient, as in the documents."""
    params = [
        torch.linspace(-1, 1, 6).reshape(2, 3),
        torch.linspace(-1, 1, 12).reshape(4, 3).half(),
        torch.ones(3),
    ]
    params = [p.to(device).requires_grad_() for p in params]
    return params


def set_grads(params: list[torch.Tensor], factor: float) -> None:
    for param in params[:2]:
        param.grad = param.detach().sin() * factor


def snapshot(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [p.detach().cpu().clone() for p in params]


def make(cls: Any, params: list[torch.Tensor]) -> Any:
    return cls(params, lr=0.01)


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("unscale_first", [True, False], ids=["unscale_", "step only"])
@pytest.mark.parametrize("cls", CLASSES)
@each_scaler
def test_a_scale_that_is_a_power_of_two_changes_nothing(
    kind: type[GradScaler], cls: Any, unscale_first: bool, dynamic: bool
) -> None:
    plain, scaled = make_params(), make_params()
    plain_optimizer, optimizer = make(cls, plain), make(cls, scaled)
    scaler = kind(init_scale=64.0, dynamic=dynamic)
    scaler.scale(torch.ones((), device="npu"))
    for _ in range(4):
        set_grads(plain, 1.0)
        plain_optimizer.step()
        set_grads(scaled, 64.0)
        if unscale_first:
            scaler.unscale_(optimizer)
            for ours, theirs in zip(scaled[:2], plain[:2], strict=True):
                assert ours.grad is not None and ours.grad.equal(theirs.grad)
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(snapshot(scaled), snapshot(plain), rtol=0, atol=0)
    assert not snapshot(scaled)[0].equal(make_params("cpu")[0])
    assert scaler.get_scale() == 64.0


@pytest.mark.parametrize("unscale_first", [True, False], ids=["unscale_", "step only"])
@pytest.mark.parametrize("cls", CLASSES)
@each_scaler
def test_an_overflow_skips_the_step_and_lowers_the_scale(
    kind: type[GradScaler], cls: Any, unscale_first: bool
) -> None:
    params = make_params()
    optimizer = make(cls, params)
    scaler = kind(init_scale=64.0, growth_interval=2)
    scaler.scale(torch.ones((), device="npu"))
    scales = []
    for overflow in (True, False, False, True):
        before = snapshot(params)
        set_grads(params, scaler.get_scale())
        if overflow:
            assert params[1].grad is not None
            params[1].grad[1, 1] = torch.inf
        if unscale_first:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved = not all(a.equal(b) for a, b in zip(before, snapshot(params), strict=True))
        assert moved != overflow
        scales.append(scaler.get_scale())
    assert scales == [32.0, 32.0, 64.0, 32.0]


@pytest.mark.parametrize("cls", CLASSES)
@each_scaler
def test_a_fixed_scale_looks_at_no_gradient(kind: type[GradScaler], cls: Any) -> None:
    params = make_params()
    optimizer = make(cls, params)
    scaler = kind(init_scale=8.0, dynamic=False, growth_interval=1)
    scaler.scale(torch.ones((), device="npu"))
    set_grads(params, 8.0)
    assert params[0].grad is not None
    params[0].grad[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0
    assert not params[0][0, 0].isfinite().item()  # torch_npu would have stepped, too
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0


def test_a_failed_step_leaves_nothing_behind() -> None:
    params = make_params()
    optimizer = make(ingot.optim.NpuFusedAdamW, params)
    scaler = HandsItselfOver(init_scale=4.0)
    scaler.scale(torch.ones((), device="npu"))
    set_grads(params, 4.0)
    params[0].grad, kept = None, params[0].grad
    optimizer.state[params[1]]["exp_avg"] = torch.zeros(7, device="npu")
    with pytest.raises(RuntimeError, match="exp_avg"):
        scaler.step(optimizer)
    del optimizer.state[params[1]]
    params[0].grad = kept
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    with pytest.raises(TypeError, match="scaler"):
        optimizer.step(scaler=scaler)


def test_rounds_are_kept_apart() -> None:
    params = make_params()
    optimizer = make(ingot.optim.NpuFusedSGD, params)
    for dynamic in (True, False):
        scaler = GradScaler(dynamic=dynamic)
        with pytest.raises(AssertionError, match="scale"):
            scaler.step(optimizer)
        scaler.scale(torch.ones((), device="npu"))
        set_grads(params, 1.0)
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        scaler.update()
        scaler.unscale_(optimizer)


def test_without_any_gradient() -> None:
    params = make_params()
    optimizer = make(ingot.optim.NpuFusedAdamW, params)
    for dynamic in (True, False):
        scaler = GradScaler(dynamic=dynamic)
        scaler.scale(torch.ones((), device="npu"))
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(snapshot(params), snapshot(make_params("cpu")), rtol=0, atol=0)


def test_optimizers_of_torch() -> None:
    params = [torch.ones(3, device="npu", requires_grad=True)]
    optimizer = torch.optim.SGD(params, lr=0.5)
    for dynamic in (True, False):
        scaler = GradScaler(init_scale=4.0, dynamic=dynamic)
        scaler.scale(params[0].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert params[0].tolist() == [0.0, 0.0, 0.0]
    half = torch.ones(2, device="npu", dtype=torch.float16, requires_grad=True)
    half.grad = torch.ones_like(half)
    for dynamic in (True, False):
        scaler = GradScaler(dynamic=dynamic)
        scaler.scale(torch.ones((), device="npu"))
        with pytest.raises(ValueError, match="FP16"):  # as with torch's own scaler
            scaler.unscale_(torch.optim.SGD([half], lr=0.5))


def test_state() -> None:
    scaler = GradScaler(init_scale=32.0, dynamic=False)
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 32.0
    assert other.state_dict() == scaler.state_dict()
    assert other.state_dict()["dynamic"] is False
    other.load_state_dict(torch.amp.GradScaler("cpu", init_scale=16.0).state_dict())
    assert (other.get_scale(), other.state_dict()["dynamic"]) == (16.0, False)


def test_disabled() -> None:
    scaler = GradScaler(enabled=False)
    loss = torch.ones(())
    assert scaler.scale(loss) is loss
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})
    params = [torch.ones(3, device="npu", requires_grad=True)]
    params[0].grad = torch.ones(3, device="npu")
    scaler.step(torch.optim.SGD(params, lr=0.5))
    scaler.update()
    assert params[0].tolist() == [0.5, 0.5, 0.5]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"growth_factor must be > 1, not 1\.0"):
        GradScaler(growth_factor=1.0)
    with pytest.raises(ValueError, match=r"backoff_factor must be < 1, not 2\.0"):
        GradScaler(backoff_factor=2.0)
    with pytest.raises(ValueError, match="expected outputs on an npu device, got 'cpu'"):
        GradScaler().scale(torch.ones(()))


def test_autocast_arguments() -> None:
    x = torch.ones(2, 2, device="npu")
    with autocast():
        assert (x @ x).dtype == torch.float16
    with autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    with autocast(False):
        assert (x @ x).dtype == torch.float32

    @autocast()
    def product() -> torch.Tensor:
        return x @ x

    assert product().dtype == torch.float16
