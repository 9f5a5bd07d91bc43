"""The native core against the declared math run by torch: every variant, type and size around the SIMD widths."""

from __future__ import annotations

import pytest
import torch
from native_buckets import (
    SHAPES,
    VARIANTS,
    assert_params_near,
    assert_states_equal,
    copy_bucket,
    new_grads,
    random_bucket,
    run_native,
    run_reference,
)

from ingot.backends import REFERENCE
from ingot.backends.native import NATIVE, core
from ingot.step.plan import Bucket
from ingot.storage.rounding import Rounding

HALVES = (torch.bfloat16, torch.float16)
# param, grad, states
TYPES = {
    "f32": (torch.float32, torch.float32, torch.float32),
    "f64": (torch.float64, torch.float64, torch.float64),
    "f32-bf16": (torch.float32, torch.bfloat16, torch.float32),
    "f32-f16": (torch.float32, torch.float16, torch.float32),
    "f32-f64": (torch.float32, torch.float64, torch.float32),
    "f64-f32": (torch.float64, torch.float32, torch.float64),
    "f32-states-bf16": (torch.float32, torch.float32, torch.bfloat16),
    "f32-states-f16": (torch.float32, torch.float32, torch.float16),
    **{
        f"{short}{suffix}": (half, grad or half, state or half)
        for short, half in zip(("bf16", "f16"), HALVES, strict=True)
        for suffix, grad, state in (
            ("", None, torch.float32),
            ("-f32", torch.float32, torch.float32),
            ("-states-param", None, None),
        )
    },
}


def go_on_from(ours: Bucket, expected: Bucket) -> None:
    """Parameters and states of the reference: differences do not add up over steps."""
    pairs = zip([ours.params, *ours.states], [expected.params, *expected.states], strict=True)
    for one, other in pairs:
        torch._foreach_copy_(one, other)


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("case", "options"), [(kind.__name__, name) for name, (kind, _) in VARIANTS.items()]
)
def test_twenty_steps(
    case: str, options: str, types: tuple[torch.dtype, torch.dtype, torch.dtype]
) -> None:
    """The bits of the reference in every step; units of rounding where sums or roots in float64 are in it."""
    name = options  # of the variant that these options choose
    dtype, grad_dtype, state_dtype = types
    ours = random_bucket(name, SHAPES, dtype, grad_dtype, state_dtype)
    expected = copy_bucket(ours)
    for step in range(20):
        for bucket in (ours, expected):
            new_grads(bucket, step)
        run_native(ours)
        run_reference(expected)
        assert_states_equal(ours, expected)
        assert_params_near(ours, expected, units=1 if dtype in HALVES else 4)
        go_on_from(ours, expected)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("sgd")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_sgd_is_equal(name: str, dtype: torch.dtype) -> None:
    """Without a root in the formula there is no tolerance at all."""
    ours = random_bucket(name, dtype=dtype)
    expected = copy_bucket(ours)
    for step in range(20):
        for bucket in (ours, expected):
            new_grads(bucket, step)
        run_native(ours)
        run_reference(expected)
        assert_params_near(ours, expected, units=0)
        assert_states_equal(ours, expected)


def project(bucket: object, rows: bool) -> None:
    """Make gradients orthogonal to the parameters: in every row, or only over the whole tensor."""
    for param, grad in zip(bucket.params, bucket.grads, strict=True):  # type: ignore[attr-defined]
        flat_param, flat_grad = param.double(), grad.double()
        if param.ndim < 2 or param.numel() == 0:
            continue
        shape = (param.shape[0], -1) if rows else (1, -1)
        p, g = flat_param.reshape(shape), flat_grad.reshape(shape)
        g = g - p * ((p * g).sum(1, keepdim=True) / (p * p).sum(1, keepdim=True))
        grad.copy_(g.reshape(param.shape))


@pytest.mark.parametrize("rows", [True, False])
def test_adamp_projections(rows: bool) -> None:
    """``score`` and ``finish`` as compiled take the same branch as declared: per row, per tensor."""
    shapes = [(130, 8), (6, 2000), (3, 65), (515, 9), (2, 70000), (70000, 2)]
    ours = random_bucket("adamp", shapes, torch.float64)
    project(ours, rows)
    expected, plain = copy_bucket(ours), copy_bucket(ours)
    run_native(ours)
    run_reference(expected)
    assert_params_near(ours, expected, units=4)
    # A gradient in the direction of the parameter is not projected: the test would see a skipped branch.
    for param, grad in zip(plain.params, plain.grads, strict=True):
        grad.add_(param)
    run_native(plain)
    keep = expected.scalars.keep
    for param, start, moved in zip(
        random_bucket("adamp", shapes, torch.float64).params,
        plain.params,
        ours.params,
        strict=True,
    ):
        assert not torch.allclose(start - keep * param, moved - keep * param)


@pytest.mark.parametrize(
    "name", ["lamb", "lamb_weight_decay", "lamb_adam", "adamp", "adamp_nesterov"]
)
@pytest.mark.parametrize("shape", [(2, 70000), (140001,), (70000, 2), (300, 700), (1, 131073)])
def test_tensors_of_several_units(name: str, shape: tuple[int, ...]) -> None:
    """Tensors that are split among threads, in rows longer and shorter than a unit of work."""
    ours = random_bucket(name, [shape, (5, 3)])
    expected = copy_bucket(ours)
    for step in range(3):
        for bucket in (ours, expected):
            new_grads(bucket, step)
        run_native(ours)
        run_reference(expected)
        assert_states_equal(ours, expected)
        assert_params_near(ours, expected, units=8)


@pytest.mark.parametrize("name", ["lamb", "adamp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_one_at_a_time(name: str, dtype: torch.dtype) -> None:
    """first() returns the sums of every row, second() applies factors per row: the sharded way."""
    shapes = [*SHAPES, (2, 70000)]
    ours = random_bucket(name, shapes, dtype)
    expected = copy_bucket(ours)
    assert NATIVE.prepare(ours) is None
    sums, wanted = NATIVE.first(ours), REFERENCE.first(expected)
    torch.testing.assert_close(sums, wanted, rtol=2e-6, atol=2e-4)
    assert_states_equal(ours, expected)
    keep = torch.rand(sums.shape[1], dtype=torch.float64) + 0.5
    rate = torch.rand(sums.shape[1], dtype=torch.float64)
    NATIVE.second(ours, keep, rate)
    REFERENCE.second(expected, keep, rate)
    assert_params_near(ours, expected, units=1 if dtype in HALVES else 4)


@pytest.mark.parametrize("name", ["adamw", "adadelta", "sgd_momentum", "lamb", "adamp"])
@pytest.mark.parametrize("dtype", HALVES)
def test_master_weights(name: str, dtype: torch.dtype) -> None:
    """The math runs on the float32 copy; the parameter is its rounded value, unless someone changed it."""
    ours = random_bucket(name, dtype=dtype, masters=True)
    expected = copy_bucket(ours)
    for step in range(5):
        for bucket in (ours, expected):
            new_grads(bucket, step)
            if step == 3:
                bucket.params[10].view(-1)[:2] = 2.5
        run_native(ours)
        run_reference(expected)
        assert ours.masters is not None and expected.masters is not None
        for param, master, other in zip(ours.params, ours.masters, expected.masters, strict=True):
            assert torch.equal(param, master.to(dtype))
            torch.testing.assert_close(master, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adadelta", "sgd_momentum", "lamb", "adamp"])
@pytest.mark.parametrize("dtype", HALVES)
def test_stochastic_rounding(name: str, dtype: torch.dtype) -> None:
    """The same random bits as the reference; sums in another order matter next to a threshold."""
    ours = random_bucket(name, dtype=dtype, state_dtype=dtype)
    count = len(ours.params)
    ours.rounding = Rounding(11, 3, 1 + len(ours.states), [*range(count)], [0] * count)
    expected = copy_bucket(ours)
    for step in range(5):
        for bucket in (ours, expected):
            new_grads(bucket, step)
        run_native(ours)
        run_reference(expected)
        assert_states_equal(ours, expected)
        assert_params_near(ours, expected, units=1)
        differing = sum(
            int((a != b).sum()) for a, b in zip(ours.params, expected.params, strict=True)
        )
        assert differing <= 10, "more than the last bits of sums explain, of 20000 elements"
        go_on_from(ours, expected)


def test_every_compiled_variant_is_compared() -> None:
    assert set(core.variants()) == set(VARIANTS)


def test_not_a_number_and_infinity_pass_through() -> None:
    """NaN in a gradient reaches its element only (elementwise), and conversions keep it."""
    for dtype in (torch.float32, *HALVES):
        ours = random_bucket("adamw_amsgrad", [(100,)], dtype=dtype, state_dtype=dtype)
        ours.grads[0][3], ours.grads[0][50] = float("nan"), float("inf")
        expected = copy_bucket(ours)
        run_native(ours)
        run_reference(expected)
        for mine, theirs in zip(
            [*ours.params, *(s[0] for s in ours.states)],
            [*expected.params, *(s[0] for s in expected.states)],
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
        assert ours.params[0].isnan().nonzero().flatten().tolist() == [3, 50]
