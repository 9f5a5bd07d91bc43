"""States in 8-bit blocks in the native core: the codes and scales of the reference, any layout, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from native_buckets import (
    VARIANTS,
    assert_params_near,
    copy_bucket,
    new_grads,
    random_bucket,
    run_native,
    run_reference,
)
from torch import Tensor

from ingot.backends import REFERENCE
from ingot.backends.native import NATIVE
from ingot.step.bucket import Bucket
from ingot.storage.rounding import Rounding

# Whole and broken blocks; rows that blocks do not line up with, also longer than a unit of work; nothing.
SHAPES: list[tuple[int, ...]] = [
    *((n,) for n in (1, 127, 128, 129, 1024, 1153, 70000)),
    *((32, 128), (515, 9), (3, 1025), (300, 257), (3, 70001), (2, 3, 2, 2), (0, 4), (4, 0), ()),
]
WITH_STATES = [name for name in VARIANTS if not name.startswith("sgd") or "momentum" in name]
SOME = ["adamw", "sgd_momentum", "adadelta", "lamb", "adamp"]


def assert_codes_equal(ours: Bucket, expected: Bucket) -> None:
    """Codes and scales, bit for bit."""
    for k, name in enumerate(ours.variant.states):
        for part in (2 * k, 2 * k + 1):
            assert all(map(torch.equal, ours.states[part], expected.states[part])), name


def go_on_from(ours: Bucket, expected: Bucket) -> None:
    """Parameters and states of the reference: differences do not add up over steps."""
    pairs = zip([ours.params, *ours.states], [expected.params, *expected.states], strict=True)
    for one, other in pairs:
        for mine, theirs in zip(one, other, strict=True):
            mine.copy_(theirs)


def compare(ours: Bucket, steps: int, units: float) -> None:
    """Some steps of both backends from the same states."""
    expected = copy_bucket(ours)
    for step in range(steps):
        for bucket in (ours, expected):
            new_grads(bucket, step)
        run_native(ours)
        run_reference(expected)
        assert_codes_equal(ours, expected)
        assert_params_near(ours, expected, units)
        go_on_from(ours, expected)


@pytest.mark.parametrize("name", WITH_STATES)
def test_five_steps(name: str) -> None:
    compare(random_bucket(name, SHAPES, state_dtype="8bit"), 5, 4)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_types_of_parameters(name: str, dtype: torch.dtype) -> None:
    compare(random_bucket(name, SHAPES, dtype, state_dtype="8bit"), 3, 1)
    compare(random_bucket(name, SHAPES, torch.float32, dtype, state_dtype="8bit"), 3, 4)


@pytest.mark.parametrize("name", SOME)
def test_master_weights(name: str) -> None:
    ours = random_bucket(name, SHAPES, torch.bfloat16, state_dtype="8bit", masters=True)
    expected = copy_bucket(ours)
    run_native(ours)
    run_reference(expected)
    assert_codes_equal(ours, expected)
    assert ours.masters is not None and expected.masters is not None
    for param, master, other in zip(ours.params, ours.masters, expected.masters, strict=True):
        assert torch.equal(param, master.to(torch.bfloat16))
        torch.testing.assert_close(master, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SOME)
def test_stochastic_rounding(name: str) -> None:
    """The same random bits as the reference."""
    ours = random_bucket(name, SHAPES, state_dtype="8bit")
    count = len(ours.params)
    ours.rounding = Rounding(11, 3, 1 + len(ours.formats), [*range(count)], [5] * count)
    compare(ours, 3, 4)


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.clone()


def sliced(tensor: Tensor) -> Tensor:
    whole = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 7.0, dtype=tensor.dtype)
    return whole[..., 1::2].copy_(tensor)


@pytest.mark.parametrize("clone", [channels_last, sliced])
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("name", SOME)
def test_any_layout(name: str, stochastic: bool, clone: Callable[[Tensor], Tensor]) -> None:
    """Blocks run in row-major order whatever the layout, and so do sums: the same bits."""
    dense = random_bucket(name, [(6, 5, 11, 13), (9, 70, 8, 2)], state_dtype="8bit")
    if stochastic:
        dense.rounding = Rounding(11, 3, 1 + len(dense.formats), [0, 1], [0, 0])
    other = copy_bucket(dense)
    other.params, other.grads = [*map(clone, dense.params)], [*map(clone, dense.grads)]
    for _ in range(2):
        run_native(dense)
        run_native(other)
    for one, two in zip([dense.params, *dense.states], [other.params, *other.states], strict=True):
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_passes_one_at_a_time(name: str) -> None:
    """The sharded way."""
    ours = random_bucket(name, SHAPES, state_dtype="8bit")
    expected = copy_bucket(ours)
    assert NATIVE.prepare(ours) is None
    sums, wanted = NATIVE.first(ours), REFERENCE.first(expected)
    assert_codes_equal(ours, expected)
    torch.testing.assert_close(sums, wanted, rtol=2e-6, atol=2e-4)
    go_on_from(ours, expected)
    keep, rate = torch.rand(2, sums.shape[1], dtype=torch.float64)
    NATIVE.second(ours, keep, rate)
    REFERENCE.second(expected, keep, rate)
    assert_params_near(ours, expected, units=4)


@pytest.mark.parametrize("name", ["lamb", "adamp", "adamp_amsgrad"])
def test_roots_of_any_size(name: str) -> None:
    """The second pass takes a code for the root of its square, except where squares are too small or too large."""
    sizes = [1.2 * 2.0**e for e in (-99, -76, -64, -58, -57, -56, 0, 54, 55, 56, 57)] + [
        0.0,
        torch.nan,
    ]
    ours = random_bucket(name, [(len(sizes), 128)], state_dtype="8bit")
    ours.scalars = ours.scalars._replace(eps=0.0)
    ours.states[2][0].copy_(torch.arange(1, 256, 2))
    for k in range(1, len(ours.variant.states)):
        ours.states[2 * k][0].copy_(ours.states[2][0])
        ours.states[2 * k + 1][0].copy_(torch.tensor(sizes))
    ours.states[0][0].fill_(100)
    ours.states[1][0].fill_(2.0**-30)
    ours.params[0].zero_()
    expected = copy_bucket(ours)
    for bucket, backend in ((ours, NATIVE), (expected, REFERENCE)):
        assert backend.prepare(bucket) is None
        backend.second(bucket, 1.0, 1.0)
    torch.testing.assert_close(ours.params, expected.params, rtol=0, atol=0, equal_nan=True)
    assert expected.params[0].isfinite().all(1).tolist().count(True) > 5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", SOME)
def test_not_a_number_poisons_its_block(name: str, bad: float) -> None:
    ours = random_bucket(name, [(512,)], state_dtype="8bit")
    ours.grads[0][130] = bad
    expected = copy_bucket(ours)
    for bucket in (ours, expected):
        for step in (run_native if bucket is ours else run_reference,) * 2:
            step(bucket)
    for one, other in zip(ours.states, expected.states, strict=True):
        torch.testing.assert_close(one[0], other[0], rtol=1e-6, atol=0, equal_nan=True)
    assert ours.states[1][0].isnan().tolist() == [False, True, False, False]


def longer_scale(bucket: Bucket) -> None:
    bucket.states[1][0] = torch.zeros(5)


def shorter_scale(bucket: Bucket) -> None:
    bucket.states[3][0] = torch.zeros(3)


def wide_scale(bucket: Bucket) -> None:
    bucket.states[1][0] = torch.zeros(4, dtype=torch.float64)


def strided_scale(bucket: Bucket) -> None:
    bucket.states[1][0] = torch.zeros(8)[::2]


def other_sign(bucket: Bucket) -> None:
    bucket.states[0][0] = bucket.states[0][0].view(torch.uint8)


def float_codes(bucket: Bucket) -> None:
    bucket.states[2][0] = bucket.states[2][0].float()


def shorter_codes(bucket: Bucket) -> None:
    bucket.states[0][0] = torch.zeros(2, 255, dtype=torch.int8)


def transposed_codes(bucket: Bucket) -> None:
    bucket.states[0][0] = torch.zeros(256, 2, dtype=torch.int8).t()


def integer_param(bucket: Bucket) -> None:
    bucket.params[0] = torch.zeros(2, 256, dtype=torch.int8)


REFUSED = {
    longer_scale: "scale of state 0: it is not one number per block",
    shorter_scale: "scale of state 1: it is not one number per block",
    wide_scale: "scale of state 0: its type is not float32",
    strided_scale: "scale of state 0: it is not one number per block",
    other_sign: "state 0: its codes are of another type",
    float_codes: "state 1: its codes are of another type",
    shorter_codes: "state 0: its shape is not that of the parameter",
    transposed_codes: "state 0: its codes are not in row-major order",
    integer_param: "param: its type is not float32",
}


@pytest.mark.parametrize("spoil", REFUSED, ids=lambda spoil: spoil.__name__)
def test_refused(spoil: Callable[[Bucket], None]) -> None:
    """Hostile states are refused before anything is changed."""
    bucket = random_bucket("adamw", [(2, 256)], state_dtype="8bit")
    spoil(bucket)
    before = [t.clone() for part in (bucket.params, *bucket.states) for t in part]
    reason = NATIVE.prepare(bucket)
    assert reason is not None and REFUSED[spoil] in reason
    assert all(map(torch.equal, before, (t for p in (bucket.params, *bucket.states) for t in p)))
