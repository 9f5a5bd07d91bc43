"""The 8-bit format against its specification, number by number, in plain Python."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from ingot.storage import blockwise8
from ingot.storage.blockwise8 import BLOCK, SIGNED, UNSIGNED, Blockwise8
from ingot.storage.rounding import random_bits

f32 = numpy.float32
FORMATS = pytest.mark.parametrize("form", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])


def bits_of(value: numpy.float32) -> int:
    return int(value.view(numpy.uint32))


@numpy.errstate(all="ignore")
def encoded(block: list[float], form: Blockwise8, noise: list[int] | None):
    """Codes and scale of one block, as the text of the module has them."""
    x = [f32(value) for value in block]
    if not form.signed:
        x = [numpy.sqrt(value) for value in x]
    peak = f32(127 if form.signed else 251)
    magnitudes = [abs(value) for value in x]
    largest = f32(math.nan) if any(map(math.isnan, magnitudes)) else max(magnitudes)
    if largest < f32(1e-30):
        inverse, scale = f32(0), f32(0)
    elif not math.isfinite(largest):
        inverse, scale, x = f32(0), f32(math.nan), [f32(0)] * len(x)
    else:
        inverse, scale = peak / largest, largest * (f32(1) / peak)
    codes = []
    for place, value in enumerate(x):
        if form.signed:
            t = value * inverse
            if noise is not None:
                t = numpy.floor(t + f32(noise[place] >> 16) * f32(2.0**-16))
                t = min(max(t, f32(-127)), f32(127))
            codes.append(int(numpy.rint(t)))
        else:
            add = 0x20000 if noise is None else noise[place] >> 14
            code = (bits_of(value * inverse + f32(1)) + add - 0x3F800000) >> 18
            codes.append(min(max(code, 1), 255))
    return codes, scale


@numpy.errstate(all="ignore")
def decoded(codes: list[int], scale: numpy.float32, form: Blockwise8) -> list[numpy.float32]:
    """The values of one block."""
    if form.signed:
        return [f32(code) * scale for code in codes]
    y = [numpy.uint32((code << 18) + 0x3F800000).view(f32) for code in codes]
    return [(one - f32(1)) * scale * ((one - f32(1)) * scale) for one in y]


def values(form: Blockwise8) -> Tensor:
    """Blocks of every sort: usual ones, outliers, zeros, tiny and huge ones, NaN, infinity, and a short last one."""
    torch.manual_seed(7)
    count = 24 * BLOCK + 37
    x = torch.randn(count) * torch.logspace(-3, 2, count)
    x[3 * BLOCK + 5] = 3e4
    x[4 * BLOCK : 5 * BLOCK] = 0
    x[5 * BLOCK : 6 * BLOCK] *= 1e-33
    x[6 * BLOCK : 7 * BLOCK] *= 1e-29
    x[7 * BLOCK : 8 * BLOCK] *= 1e35
    x[8 * BLOCK] = math.nan
    x[9 * BLOCK + 1] = math.inf
    x[10 * BLOCK + 2] = torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32)  # -NaN
    x[11 * BLOCK : 12 * BLOCK] = torch.arange(BLOCK) - 64.0
    return x if form.signed else x.abs()


def numbers(tensor: Tensor) -> numpy.ndarray:
    return tensor.numpy()


@FORMATS
@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
def test_codes_and_scales_are_those_of_the_specification(
    form: Blockwise8, stochastic: bool
) -> None:
    x = values(form)
    noise = random_bits(torch.arange(x.numel()), 12345)
    parts = form.new(x, 0.0)
    form.store(parts, x, (lambda: noise) if stochastic else None)
    back = form.load(parts, torch.float32)
    for start in range(0, x.numel(), BLOCK):
        place = slice(start, start + BLOCK)
        codes, scale = encoded(
            x[place].tolist(), form, noise[place].tolist() if stochastic else None
        )
        assert parts[0][place].tolist() == codes
        numpy.testing.assert_array_equal(numbers(parts[1][start // BLOCK]), scale)
        numpy.testing.assert_array_equal(numbers(back[place]), decoded(codes, scale, form))


@FORMATS
def test_nothing_is_further_from_its_code_than_half_a_step(form: Blockwise8) -> None:
    torch.manual_seed(1)
    x = torch.randn(64, BLOCK)
    x = x if form.signed else x.square()
    parts = form.new(x, 0.0)
    form.store(parts, x, None)
    back = form.load(parts, torch.float32)
    if form.signed:
        step = x.abs().amax(1, keepdim=True) / 127
        assert ((back - x).abs() <= step * 0.501).all()
        return
    root, peak = x.sqrt(), x.sqrt().amax(1, keepdim=True)
    y = root / peak * 251 + 1
    step = 2.0 ** y.log2().floor() / 32 * peak / 251
    near = (back.sqrt() - root).abs() <= step * 0.501
    assert (near | (root < peak / 251 / 32)).all()  # what would be code 0 is code 1


@FORMATS
def test_stochastic_rounding_is_right_on_average(form: Blockwise8) -> None:
    """The mean of many roundings is the value (of the root, for unsigned states)."""
    torch.manual_seed(2)
    x = torch.rand(BLOCK) * 0.9 + 0.05
    x[0] = 1.0
    x = x if form.signed else x.square()
    rounds = 4000
    many = x.repeat(rounds)
    parts = form.new(many, 0.0)
    form.store(parts, many, lambda: random_bits(torch.arange(many.numel()), 7919))
    back = form.load(parts, torch.float32).double().view(rounds, BLOCK)
    average = (back if form.signed else back.sqrt()).mean(0)
    exact = x.double() if form.signed else x.double().sqrt()
    step = 1 / 127 if form.signed else 4 / 251
    assert ((average - exact).abs() < 5 * step / 2 / math.sqrt(rounds)).all()


@FORMATS
def test_blocks_follow_the_indices_not_the_memory(form: Blockwise8) -> None:
    torch.manual_seed(3)
    x = torch.rand(4, 8, 12, 12)
    parts, other = form.new(x, 0.0), form.new(x.to(memory_format=torch.channels_last), 0.0)
    assert other[0].is_contiguous()
    form.store(parts, x, None)
    form.store(other, x.to(memory_format=torch.channels_last), None)
    assert all(map(torch.equal, parts, other))


def test_a_state_may_start_at_a_value() -> None:
    parts = UNSIGNED.new(torch.empty(70, 70), 1.0)
    assert torch.allclose(UNSIGNED.load(parts, torch.float32), torch.ones(70, 70), rtol=3e-7)


@FORMATS
def test_there_are_tensors_without_elements(form: Blockwise8) -> None:
    parts = form.new(torch.empty(0, 5), 0.0)
    form.store(parts, torch.empty(0, 5), None)
    assert form.load(parts, torch.float32).shape == (0, 5)
    assert [tuple(part.shape) for part in parts] == [(0, 5), (0,)]


def test_rows_are_cut_where_blocks_are() -> None:
    x = torch.rand(96, 20)
    parts = SIGNED.new(x, 0.0)
    SIGNED.store(parts, x, None)
    whole = SIGNED.load(parts, torch.float32)
    for rows in (slice(0, 32), slice(32, 64), slice(64, 96)):
        assert torch.equal(SIGNED.load(SIGNED.cut(parts, rows), torch.float32), whole[rows])


def test_the_threshold_is_what_the_documents_say() -> None:
    assert (blockwise8.BLOCK, blockwise8.FEWEST) == (128, 4096)
