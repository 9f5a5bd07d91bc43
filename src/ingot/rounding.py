"""Stochastic rounding to 16 bits with a counter-based generator: the same bits on every backend.

The random bits of an element are a hash of (seed, step, parameter, operand, index of the element in row-major
order). So they depend on nothing else: not on threads, layout, instruction set, backend or what ran before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ingot.precision import HALVES, Precision

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9  # spreads consecutive indices over the 32-bit words
_HIGH = 0x85EBCA6B  # the same for the part of an index above 2^32


def mix(x: int) -> int:
    """A 32-bit hash (the constants are Chris Wellons' "lowbias32")."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _WORD
    x ^= x >> 15
    x = x * 0x846CA68B & _WORD
    return x ^ x >> 16


@dataclass
class Rounding:
    """Which bits a bucket's tensors are rounded with: ``keys[k][i]`` for operand k of tensor i.

    Operand 0 is the parameter, 1 and up are its states, in the order of the variant.
    """

    seed: int
    step: int
    keys: list[list[int]] = field(default_factory=list)

    @staticmethod
    def of(precision: Precision, operands: int, step: int) -> Rounding | None:
        """None where everything is rounded to nearest."""
        if precision.rounding == "nearest":
            return None
        return Rounding(precision.seed, step, [[] for _ in range(operands)])

    def add(self, ordinal: int) -> None:
        """Take in the next tensor; ``ordinal`` is its parameter's number in the optimizer."""
        key = mix((self.seed & _WORD) ^ mix(self.seed >> 32 & _WORD))
        key = mix(key ^ mix(self.step & _WORD))
        key = mix(key ^ mix(ordinal & _WORD))
        for operand, keys in enumerate(self.keys):
            keys.append(mix(key ^ mix(operand)))


def random_bits(index: Tensor, key: Tensor | int) -> Tensor:
    """32 random bits per element as int64; ``index`` is the row-major index, ``key`` the tensor's key."""
    x = (index & _WORD) * _GOLDEN + key & _WORD
    x = x ^ (index >> 32) * _HIGH & _WORD
    x = x ^ x >> 16
    x = x * 0x7FEB352D & _WORD
    x = x ^ x >> 15
    x = x * 0x846CA68B & _WORD
    return x ^ x >> 16


def round_stochastic(value: Tensor, dtype: torch.dtype, bits: Tensor) -> Tensor:
    """Round float32 ``value`` to a neighbour in ``dtype``, up with the probability of the part cut off.

    The result is float32 and exact in ``dtype``; values that already are stay as they are.
    """
    assert dtype in HALVES and value.dtype is torch.float32
    pattern = value.view(torch.int32)
    cut = 16 if dtype is torch.bfloat16 else 13
    noise = (bits >> 32 - cut).to(torch.int32)
    rounded = (pattern + noise & -(1 << cut)).view(torch.float32)
    if dtype is torch.float16:
        # Below 2^-14 float16 has a fixed quantum of 2^-24.
        fraction = (bits >> 8).to(torch.float32) * 2.0**-24
        small = torch.floor(value.abs() * 2.0**24 + fraction) * 2.0**-24
        rounded = torch.where(value.abs() < 2.0**-14, torch.copysign(small, value), rounded)
    return torch.where(torch.isfinite(value), rounded, value)
