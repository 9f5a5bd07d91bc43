"""Steps with stochastic rounding: the same bits on every backend, in every layout, with any threads."""

import pytest
import torch
from stochastic import SHAPES, STOCHASTIC
from torch import Tensor

from cases import CASES, Case, each_backend, each_case, each_fused_backend
from ingot.storage.rounding import Rounding, random_bits, round_stochastic
from training import assert_same, make_params, set_grad, tensors_of, train

each_half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def edge_values() -> Tensor:
    """float32 values of all sizes: normal, subnormal, around the largest 16-bit values, infinite, NaN."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(1 << 31), 1 << 31, (6000,), generator=generator).to(torch.int32)
    any_size = patterns.view(torch.float32)
    float16_size = torch.exp2(torch.rand(6000, generator=generator) * 50 - 34)
    edges = [65504.0, 65519.99, 65520.0, 65535.0, 3.38953139e38, 3.3961e38, 3.4028e38]
    special = torch.tensor([*edges, 2.0**-14, 2.0**-24, 2.0**-25, 0.0, torch.inf, torch.nan])
    return torch.cat([any_size, float16_size, -float16_size, special, -special])


@each_backend
@each_half
def test_every_backend_rounds_by_the_same_function(backend: str, dtype: torch.dtype) -> None:
    """SGD from 0 with lr 1 stores minus the gradient: the backend's rounding and nothing else."""
    value = edge_values()
    param = torch.zeros(value.shape, dtype=dtype, requires_grad=True)
    other = torch.zeros(3, dtype=dtype, requires_grad=True)  # so the one looked at is number 1
    optimizer = CASES["sgd"].make([other, param], lr=1.0, backend=backend, **STOCHASTIC)
    set_grad(other, torch.ones(3))
    set_grad(param, value)
    for step in (1, 2):
        with torch.no_grad():
            param.zero_()
        optimizer.step()
        rounding = Rounding(11, step, 1, [0, 1], [0, 0])
        bits = random_bits(torch.arange(value.numel()), rounding.keys[0][1])
        expected = round_stochastic(-value, dtype, bits).to(dtype)
        torch.testing.assert_close(param.detach(), expected, rtol=0, atol=0, equal_nan=True)
        nearest = (-value).to(dtype)
        assert ((expected != nearest) & ~nearest.isnan()).sum() > 1000  # something was at stake


@each_fused_backend
@each_half
@pytest.mark.parametrize("momentum", [0.0, 0.875])
def test_whole_steps_are_the_reference_backends(
    backend: str, dtype: torch.dtype, momentum: float
) -> None:
    """SGD has no root and no division: every backend computes the same, and so every bit is equal."""
    options = dict(lr=0.03, momentum=momentum, weight_decay=0.01, state_dtype="param", **STOCHASTIC)
    one = CASES["sgd"].make(make_params(SHAPES, dtype), **options, backend=backend)
    two = CASES["sgd"].make(make_params(SHAPES, dtype), **options, backend="reference")
    for optimizer in (one, two):
        train(optimizer, optimizer.param_groups[0]["params"], 6)
    assert_same(tensors_of(one), tensors_of(two))


@each_case
@each_half
def test_states_are_the_same_on_every_backend(case: Case, dtype: torch.dtype) -> None:
    """After one step, moments must be equal bit for bit; a parameter may be off by one unit in the last place.

    torch's own square root is not correctly rounded, so a parameter may just miss a rounding.
    """
    results = {}
    for backend in ("reference", "lists", "native"):
        try:
            optimizer = case.make(
                make_params(SHAPES, dtype),
                lr=0.05,
                state_dtype="param",
                backend=backend,
                **STOCHASTIC,
            )
        except ValueError:
            continue
        train(optimizer, optimizer.param_groups[0]["params"], 1)
        results[backend] = tensors_of(optimizer)
    expected = results.pop("reference")
    assert "lists" in results
    for actual in results.values():
        states = {name: value for name, value in actual.items() if not name.startswith("param")}
        assert_same(states, {name: expected[name] for name in states})
        assert_same(actual, expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
        params = [name for name in actual if name.startswith("param")]
        differ = sum(int((actual[name] != expected[name]).sum()) for name in params)
        assert differ <= 3  # of 1142


@each_case
@each_backend
@each_half
def test_layout_does_not_matter(case: Case, backend: str, dtype: torch.dtype) -> None:
    """channels_last, transposed and sliced tensors are rounded by the index in row-major order."""
    base = torch.randn(6, 4, 5, 5)
    plain = base.to(dtype).requires_grad_()
    channels_last = plain.detach().clone().to(memory_format=torch.channels_last).requires_grad_()
    transposed = plain.detach().permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    sliced = torch.zeros(6, 4, 5, 10, dtype=dtype)[..., ::2].copy_(plain.detach())
    results = []
    for param in (plain, channels_last, transposed, sliced):
        param = param.detach().requires_grad_()
        optimizer = case.make([param], lr=0.05, backend=backend, state_dtype="param", **STOCHASTIC)
        train(optimizer, [param], 1)
        strides = {param.stride()}
        results.append((strides, tensors_of(optimizer)))
    assert len({str(strides) for strides, _ in results}) == 4
    for _, other in results[1:]:
        # Sums of two-pass optimizers may be added up in another order.
        exact = not case.kind.spec.finish
        states = {name: value for name, value in other.items() if "param" not in name}
        assert_same(states, {name: results[0][1][name] for name in states})
        assert_same(other, results[0][1], rtol=0 if exact else torch.finfo(dtype).eps)


@each_backend
def test_threads_do_not_matter(backend: str) -> None:
    """Large enough to be split among threads."""
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            params = make_params([(300_001,), (5, 40_000)], torch.bfloat16)
            optimizer = CASES["adamw"].make(
                params, lr=0.05, backend=backend, state_dtype="param", **STOCHASTIC
            )
            train(optimizer, params, 2)
            results.append(tensors_of(optimizer))
    finally:
        torch.set_num_threads(threads)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
