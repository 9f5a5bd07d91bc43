"""Stochastic rounding by itself: exact where it can be, unbiased elsewhere, and the same bits for ever."""

import math

import pytest
import torch
from torch import Tensor

from ingot.storage.rounding import HALVES, Rounding, mix, random_bits, round_stochastic

each_half = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
WORD = 0xFFFFFFFF
GOLDEN_KEYS = [1591514664, 122308267, 4231391968]
GOLDEN_BITS = [2435775735, 1084875187, 3839607191, 3417948980, 2751290063, 124365400]


def every_value(dtype: torch.dtype) -> Tensor:
    """All 65536 values of a 16-bit type, as float32."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).to(torch.float32)


def some_bits(count: int, key: int = 12345) -> Tensor:
    return random_bits(torch.arange(count), key)


def neighbours(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The nearest values of ``dtype`` at or below and at or above, in float64."""
    near = value.to(dtype)
    low = torch.where(
        near.to(torch.float64) <= value, near, torch.nextafter(near, near - torch.inf)
    )
    high = torch.where(
        near.to(torch.float64) >= value, near, torch.nextafter(near, near + torch.inf)
    )
    return low.to(torch.float64), high.to(torch.float64)


@each_half
@pytest.mark.parametrize("bits", [0, 1, 0x8000, 0x7FFFFFFF, 0xFFFF0000, WORD])
def test_representable_values_stay(dtype: torch.dtype, bits: int) -> None:
    value = every_value(dtype)
    rounded = round_stochastic(value, dtype, torch.full(value.shape, bits))
    torch.testing.assert_close(rounded, value, rtol=0, atol=0, equal_nan=True)
    numbers = value[~value.isnan()]
    kept = round_stochastic(numbers, dtype, torch.full(numbers.shape, bits))
    assert torch.equal(kept.signbit(), numbers.signbit())  # -0 is not 0


@each_half
def test_every_result_is_one_of_the_two_neighbours(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    exponent = torch.rand(200_000, generator=generator) * 60 - 44  # normal and subnormal float16
    value = torch.randn(200_000, generator=generator).sign() * torch.exp2(exponent)
    value = value[value.abs() <= torch.finfo(dtype).max]
    low, high = neighbours(value, dtype)
    rounded = round_stochastic(value, dtype, some_bits(len(value))).to(torch.float64)
    assert torch.equal(rounded.to(dtype).to(torch.float64), rounded)
    assert torch.all((rounded == low) | (rounded == high))
    assert (rounded == low).float().mean() > 0.3 and (rounded == high).float().mean() > 0.3


VALUES = {
    "small part": 1 + 1.37e-4,
    "nearly half": 1 + 0.4999 * 2.0**-7,
    "large part": -3 + 1e-4,
    "pi": math.pi,
    "subnormal float16": 4.321e-6,
    "below the smallest float16": -1.7e-8,
    "tiny": 3e-12,
    "large": 60001.7,
}


@each_half
@pytest.mark.parametrize("number", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("key", [0, 1, 0xDEADBEEF])
def test_unbiased_over_elements(dtype: torch.dtype, number: float, key: int) -> None:
    """The mean of n roundings has the deviation quantum * sqrt(f (1 - f) / n): five of them are allowed.

    The bits are fixed, so the test gives the same verdict each time; a fair coin fails it once in 1.7 million.
    The second term is what finite random bits cannot resolve: 2^-24 of a quantum.
    """
    count = 1 << 18
    value = torch.full((count,), number)
    low, high = (float(each[0]) for each in neighbours(value, dtype))
    rounded = round_stochastic(value, dtype, some_bits(count, key)).to(torch.float64)
    exact, quantum = float(value[0]), high - low
    fraction = (exact - low) / quantum
    deviation = quantum * math.sqrt(fraction * (1 - fraction) / count)
    assert abs(float(rounded.mean()) - exact) < 5 * deviation + quantum * 2**-23


@each_half
def test_unbiased_over_steps_and_operands(dtype: torch.dtype) -> None:
    """One element must not be rounded the same way each step: margins as above."""
    steps = 4096
    keys = torch.tensor([rounding(step).keys for step in range(steps)]).squeeze(2)
    value = torch.full(keys.shape, 1 + 0.3 * torch.finfo(dtype).eps)
    bits = random_bits(torch.tensor(5), keys)
    ups = (round_stochastic(value, dtype, bits) > value).double()
    deviation = math.sqrt(0.3 * 0.7 / steps)
    assert torch.all((ups.mean(0) - 0.3).abs() < 5 * deviation)
    together = (ups[:, 0] * ups[:, 1]).mean()  # operands must not go up together
    assert abs(float(together) - 0.09) < 5 * math.sqrt(0.09 * 0.91 / steps)
    in_turn = (ups[1:, 0] * ups[:-1, 0]).mean()  # nor consecutive steps
    assert abs(float(in_turn) - 0.09) < 5 * math.sqrt(0.09 * 0.91 / steps)


def test_bits_of_neighbouring_elements_are_independent() -> None:
    """Correlations of n pairs have the deviation 1 / sqrt(n); each of 32 bits is set half of the time."""
    count = 1 << 18
    bits = some_bits(count)
    for place in range(32):
        share = float((bits >> place & 1).double().mean())
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(count), place
    uniform = bits.double() / 2**32 - 0.5
    for distance in (1, 2, 64, 1024):
        product = (uniform[distance:] * uniform[:-distance]).mean() * 12
        assert abs(float(product)) < 5 / math.sqrt(count), distance


def rounding(step: int, seed: int = 7, ordinal: int = 3) -> Rounding:
    result = Rounding(seed, step, 3, [ordinal], [0])
    return result


def test_keys_differ_by_everything_they_depend_on() -> None:
    keys = [
        key[0]
        for seed in (0, 1, 1 << 32, (1 << 64) - 1)
        for step in (1, 2, 1000)
        for ordinal in (0, 1, 500)
        for key in rounding(step, seed, ordinal).keys
    ]
    assert len(set(keys)) == len(keys) == 4 * 3 * 3 * 3
    assert all(0 <= key <= WORD for key in keys)


def test_the_bits_are_those_of_earlier_versions() -> None:
    """A checkpoint resumes bit for bit only if these numbers never change."""
    assert rounding(1).keys == [[key] for key in GOLDEN_KEYS]
    index = torch.tensor([0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 33) + 5])
    assert random_bits(index, 12345).tolist() == GOLDEN_BITS


@pytest.mark.parametrize("index", [0, 1, 77, (1 << 32) - 1, 1 << 32, (1 << 35) + 3])
def test_bits_are_the_hash_of_the_index(index: int) -> None:
    """The same in whole numbers of any size, instead of int64 that wraps around."""
    word = (index & WORD) * 0x9E3779B9 + 99 & WORD
    word ^= (index >> 32) * 0x85EBCA6B & WORD
    assert random_bits(torch.tensor([index]), 99).tolist() == [mix(word)]


@pytest.mark.parametrize("start", [0, 1000, (1 << 32) - 8, 1 << 32, (3 << 32) + 5])
def test_a_shard_has_the_bits_of_the_whole_below_2_to_the_32(start: int) -> None:
    """As docs/precision.md promises; from there on the bits are others, and those of earlier versions."""
    index = torch.arange(start, start + 16)
    for operand in range(3):
        shard = Rounding(7, 1, 3, [3], [start]).bits(operand, 0, 0, torch.empty(16))
        whole = rounding(1).bits(operand, 0, start, torch.empty(16))
        assert torch.equal(shard == whole, index < 1 << 32)
        assert torch.equal(shard, random_bits(index & WORD, GOLDEN_KEYS[operand]))


@each_half
def test_beyond_the_largest_value_as_to_nearest(dtype: torch.dtype) -> None:
    """A finite value becomes infinite only where rounding to nearest makes it so, never by chance."""
    largest = torch.tensor(torch.finfo(dtype).max)
    quantum = largest - torch.nextafter(largest.to(dtype), torch.zeros((), dtype=dtype)).float()
    near, far = largest + quantum / 4, torch.nextafter(largest, largest * 0 + torch.inf)
    just_below_half = torch.nextafter(largest + quantum / 2, torch.zeros(()))
    value = torch.stack([near, far, just_below_half, largest + quantum / 2])
    value = torch.cat([value, -value, torch.tensor([torch.inf, -torch.inf, torch.nan])])
    for bits in (0, 0x80000000, WORD):
        rounded = round_stochastic(value, dtype, torch.full(value.shape, bits))
        torch.testing.assert_close(rounded, value.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    assert value.to(dtype).isfinite().sum() == 6


def test_too_small_for_float16_still_counts() -> None:
    """1/1000 of the smallest float16: rounded up once in a thousand times, never to anything else."""
    smallest = 2.0**-24
    count = 1 << 20
    rounded = round_stochastic(
        torch.full((count,), smallest / 1000), torch.float16, some_bits(count)
    )
    assert set(rounded.tolist()) == {0.0, smallest}
    share = float((rounded > 0).double().mean())
    assert abs(share - 1e-3) < 5 * math.sqrt(1e-3 / count)
