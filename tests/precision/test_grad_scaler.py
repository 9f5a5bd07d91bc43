"""torch.amp.GradScaler: unscaled in the step; an overflow changes nothing, not one bit."""

from typing import Any

import pytest
import torch
from scaling import PRECISIONS, SHAPES, amp_step, scale_grads, spoil
from torch.amp import GradScaler

from cases import CASES, Case, Options, each_backend, each_case, each_setting
from training import (
    assert_same,
    assert_unchanged,
    give_grads,
    make_params,
    picture,
    tensors_of,
    train,
)

# x: an overflow, o: a good step.
DRILLS = ["x", "xxxooxo", "oxoxxxxo"]
each_precision = pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
each_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def drill(case: Case, options: Options, dtype: torch.dtype, backend: str, pattern: str) -> None:
    """Run with overflows and without: the good steps make the same numbers."""
    seen = case.make(make_params(SHAPES, dtype), **options, backend=backend)
    scaler = GradScaler("cpu", init_scale=2.0**4)
    good = 0
    for kind in pattern:
        before = picture(seen)
        amp_step(seen, scaler, good, overflow=kind == "x")
        assert not hasattr(seen, "found_inf") and not hasattr(seen, "grad_scale")
        if kind == "x":
            before["grads"] = picture(seen)["grads"]
            assert_unchanged(seen, before)
        good += kind == "o"
    never = case.make(make_params(SHAPES, dtype), **options, backend=backend)
    train(never, never.param_groups[0]["params"], good)
    assert_same(tensors_of(seen), tensors_of(never))
    assert len(seen.state) == len(never.state)
    assert scaler.get_scale() == 2.0 ** (4 - pattern.count("x"))


@each_setting
@each_backend
@pytest.mark.parametrize("pattern", DRILLS)
def test_overflows_leave_no_trace(case: Case, options: Options, backend: str, pattern: str) -> None:
    drill(case, options, torch.float32, backend, pattern)


@each_case
@each_backend
@each_half
@each_precision
def test_overflows_leave_no_trace_in_16_bits(
    case: Case, backend: str, dtype: torch.dtype, precision: dict[str, Any]
) -> None:
    drill(case, {"lr": 0.01, **precision}, dtype, backend, "xoxxoo")


def test_schedules_wait_during_an_overflow() -> None:
    """BertAdam's rate follows the steps made, not the steps tried."""
    optimizer = CASES["bert_adam"].make(make_params(SHAPES), lr=0.1, warmup=0.5, t_total=8)
    scaler = GradScaler("cpu", init_scale=4.0)
    rates = []
    for number, overflow in enumerate([True, False, True, True, False]):
        amp_step(optimizer, scaler, number, overflow=overflow)
        rates.append(optimizer.get_lr()[0])
    assert rates == pytest.approx([0.0, 0.025, 0.025, 0.025, 0.05])


@each_case
@each_backend
def test_unscale_first_then_step(case: Case, backend: str) -> None:
    """After scaler.unscale_ the gradients are the true ones, for whoever looks at them."""
    one = case.make(make_params(SHAPES), lr=0.01, backend=backend)
    two = case.make(make_params(SHAPES), lr=0.01, backend=backend)
    scalers = [GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    for step, overflow in enumerate([False, True, False]):
        amp_step(one, scalers[0], step, overflow=overflow)
        params = two.param_groups[0]["params"]
        give_grads(params, step)
        true = [param.grad.clone() for param in params]
        scale_grads(scalers[1], params)
        if overflow:
            spoil(params)
        scalers[1].unscale_(two)
        if not overflow:
            assert all(torch.equal(p.grad, grad) for p, grad in zip(params, true, strict=True))
        scalers[1].step(two)
        scalers[1].update()
    assert_same(tensors_of(one), tensors_of(two))
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0**9


@each_backend
def test_one_scaler_for_two_optimizers(backend: str) -> None:
    """An overflow in one of them skips that one only, as torch documents; the scale goes down for both."""
    first = CASES["adamw"].make(make_params(SHAPES), lr=0.01, backend=backend)
    second = CASES["lamb"].make(make_params(SHAPES, seed=1), lr=0.01, backend=backend)
    alone = CASES["lamb"].make(make_params(SHAPES, seed=1), lr=0.01, backend=backend)
    scaler = GradScaler("cpu", init_scale=2.0**8)
    for optimizer in (first, second):
        give_grads(optimizer.param_groups[0]["params"], 0)
        scale_grads(scaler, optimizer.param_groups[0]["params"])
    spoil(first.param_groups[0]["params"])
    before = picture(first)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert_unchanged(first, before)
    train(alone, alone.param_groups[0]["params"], 1)
    assert_same(tensors_of(second), tensors_of(alone))
    assert scaler.get_scale() == 2.0**7
    for optimizer in (first, second):
        assert not hasattr(optimizer, "grad_scale")


class FixedScaler(GradScaler):
    """As torch_npu's with dynamic=False: the scale stays and nobody looks for overflows."""

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        return {found_inf.device: found_inf}

    def update(self, new_scale: Any = None) -> None:
        self._per_optimizer_states.clear()


@each_case
@each_backend
@pytest.mark.parametrize("scale", [2.0**7, 1000.0])
def test_a_fixed_scale(case: Case, backend: str, scale: float) -> None:
    scaled = case.make(make_params(SHAPES, torch.float64), lr=0.01, backend=backend)
    plain = case.make(make_params(SHAPES, torch.float64), lr=0.01, backend=backend)
    scaler = FixedScaler("cpu", init_scale=scale)
    for step in range(3):
        amp_step(scaled, scaler, step)
    train(plain, plain.param_groups[0]["params"], 3)
    # 1000 is no power of two: its reciprocal and the products are rounded.
    assert_same(tensors_of(scaled), tensors_of(plain), rtol=0 if scale == 128 else 1e-13)
    amp_step(scaled, scaler, 3, overflow=True)
    assert scaled.param_groups[0]["params"][1].isnan().any()
    assert scaler.get_scale() == scale


@each_case
@each_backend
def test_float16_gradients_are_unscaled_in_float32(case: Case, backend: str) -> None:
    """Gradients that float16 cannot hold: they exist only while scaled, and the step must see them."""
    params = make_params([(5, 3)], torch.float16)
    wide = make_params([(5, 3)])
    with torch.no_grad():
        wide[0].copy_(params[0])
    low = case.make(params, lr=0.01, backend=backend, master_weights=True)
    high = case.make(wide, lr=0.01, backend=backend)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        scaled = torch.randn(5, 3, generator=generator).to(torch.float16)  # 2^-16 of it underflows
        params[0].grad, wide[0].grad = scaled, scaled.float() / 2.0**16
        scaler.scale(torch.zeros(()))
        scaler.step(low)
        scaler.update()
        high.step()
    master = low.state[params[0]]["master_param"]
    torch.testing.assert_close(master, wide[0].detach(), rtol=0, atol=0)
    assert torch.equal(params[0], wide[0].to(torch.float16))


@each_backend
def test_a_failed_step_leaves_no_scale_behind(backend: str) -> None:
    """GradScaler itself would leave its attributes there, and multiply the next scale into them."""
    optimizer = CASES["adamw"].make(make_params(SHAPES), lr=0.01, backend=backend)
    twin = CASES["adamw"].make(make_params(SHAPES), lr=0.01, backend=backend)
    params = optimizer.param_groups[0]["params"]
    scaler = GradScaler("cpu", init_scale=2.0**6)
    give_grads(params, 0)
    scale_grads(scaler, params)
    optimizer.state[params[0]] = {
        "step": 1,
        "exp_avg": torch.zeros(3),
        "exp_avg_sq": torch.zeros(3),
    }
    with pytest.raises(RuntimeError, match="exp_avg"):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
    del optimizer.state[params[0]]
    scaler.step(optimizer)
    scaler.update()
    train(twin, twin.param_groups[0]["params"], 1)
    assert_same(tensors_of(optimizer), tensors_of(twin))


def test_a_scale_set_by_hand() -> None:
    """The attributes are torch's contract, so other scalers may use them as well."""
    optimizer = CASES["sgd"].make(make_params([(3,)]), lr=1.0)
    twin = CASES["sgd"].make(make_params([(3,)]), lr=1.0)
    for scale in (torch.tensor([8.0]), 8.0):
        train(twin, twin.param_groups[0]["params"], 1)
        give_grads(optimizer.param_groups[0]["params"], 0)
        optimizer.param_groups[0]["params"][0].grad *= 8
        optimizer.grad_scale = scale
        optimizer.step()
        assert_same(tensors_of(optimizer), tensors_of(twin))


def test_an_interrupted_step_leaves_no_scale_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle, and training goes on: the next plain step must not divide by an old scale."""
    optimizer = CASES["adamw"].make(make_params(SHAPES))
    params = optimizer.param_groups[0]["params"]
    scaler = GradScaler("cpu", init_scale=2.0**6)
    give_grads(params, 0)
    scale_grads(scaler, params)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizer, "_plan", interrupt)
    with pytest.raises(KeyboardInterrupt):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale") and not hasattr(optimizer, "found_inf")
