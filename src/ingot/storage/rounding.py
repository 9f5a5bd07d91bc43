"""Stochastic rounding to 16 bits with a counter-based generator: the same bits on every backend.

The random bits of an element are a hash of (seed, step, parameter, operand, index of the element in row-major
order). So they depend on nothing else: not on threads, layout, instruction set, backend or what ran before. Only the
elements of a shard whose index in the whole tensor is 2^32 or more have other bits than there, see ``Rounding.keys``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ingot.sharding.dtensor import is_dtensor

HALVES = (torch.float16, torch.bfloat16)
_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9  # spreads consecutive indices over the 32-bit words
_HIGH = 0x85EBCA6B  # the same for the part of an index above 2^32
_OPERANDS = 8  # room for the operands of one parameter among the counters


def mix(x: int) -> int:
    """A 32-bit hash (the constants are Chris Wellons' "lowbias32")."""
    x ^= x >> 16
    x = x * 0x7FEB352D & _WORD
    x ^= x >> 15
    x = x * 0x846CA68B & _WORD
    return x ^ x >> 16


def random_bits(index: Tensor, key: Tensor | int) -> Tensor:
    """32 random bits per element as int64; ``index`` is the row-major index, ``key`` the tensor's key."""
    x = (index & _WORD) * _GOLDEN + key & _WORD
    x = x ^ (index >> 32) * _HIGH & _WORD
    x = x ^ x >> 16
    x = x * 0x7FEB352D & _WORD
    x = x ^ x >> 15
    x = x * 0x846CA68B & _WORD
    return x ^ x >> 16


@dataclass
class Rounding:
    """Which random bits the tensors of a bucket are rounded with.

    Attributes:
        seed: the option ``rounding_seed``.
        step: the number of the step.
        operands: 1 (the parameter) + the number of states.
        ordinals: the numbers of the parameters in the optimizer.
        starts: the row-major index of their first local element in the whole tensor.
    """

    seed: int
    step: int
    operands: int
    ordinals: list[int]
    starts: list[int]

    @property
    def base(self) -> int:
        """The key of all tensors: a hash of seed and step."""
        base = mix((self.seed & _WORD) ^ mix(self.seed >> 32))
        return mix(base ^ mix(self.step & _WORD))

    @cached_property
    def keys(self) -> list[list[int]]:
        """``keys[k][i]`` for operand k of tensor i: 0 is the parameter, then its states in order.

        A hash of seed and step keys the hash of (parameter, operand). Moving on by ``start`` in a key is the
        same as moving on by it in every index, as long as the sum of both is below 2^32: the part of an index above
        that has a multiplier of its own, which a key has no room for.
        """
        ordinals = torch.tensor(self.ordinals, device="cpu").unsqueeze(0)
        operands = torch.arange(self.operands, device="cpu").unsqueeze(1)
        keys = random_bits(ordinals * _OPERANDS + operands, self.base)
        keys = keys + (torch.tensor(self.starts, device="cpu") & _WORD) * _GOLDEN & _WORD
        listed: list[list[int]] = keys.tolist()
        return listed

    def bits(self, operand: int, member: int, first: int, like: Tensor) -> Tensor:
        """The random bits of some elements of one tensor, shaped like ``like``; ``first`` is their row-major index."""
        index = torch.arange(first, first + like.numel(), device=like.device)
        return random_bits(index.reshape(like.shape), self.keys[operand][member])


def first_index(owner: Tensor) -> int:
    """Where the local part of a tensor begins in the whole, in row-major order; 0 for an unsharded one.

    The rows of a tensor split along dim 0 are then rounded as if it were whole, but for its elements from 2^32 on:
    these get other random bits in a shard, see ``Rounding.keys``.
    """
    if not is_dtensor(owner):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offsets = compute_local_shape_and_global_offset(
        owner.shape,
        owner.device_mesh,  # type: ignore[attr-defined]
        owner.placements,  # type: ignore[attr-defined]
    )
    start = 0
    for offset, size in zip(offsets, owner.shape, strict=True):
        start = start * size + offset
    return start


def round_stochastic(value: Tensor, dtype: torch.dtype, bits: Tensor) -> Tensor:
    """Round float32 ``value`` to a neighbour in ``dtype``, up with the probability of the part cut off.

    The result is float32 and exact in ``dtype``; values that already are stay as they are. Values beyond the
    largest finite one have no neighbour above: they, infinities and NaN are rounded to nearest.
    """
    assert dtype in HALVES and value.dtype is torch.float32
    pattern = value.view(torch.int32)
    cut = 16 if dtype is torch.bfloat16 else 13
    noise = (bits >> 32 - cut).to(torch.int32)
    rounded = (pattern + noise & -(1 << cut)).view(torch.float32)
    if dtype is torch.float16:
        rounded = torch.where(value.abs() < 2.0**-14, round_subnormal(value, bits), rounded)
    inside = value.abs() <= torch.finfo(dtype).max
    return torch.where(inside, rounded, value.to(dtype).to(torch.float32))


def round_subnormal(value: Tensor, bits: Tensor) -> Tensor:
    """The same for float16 below 2^-14, where its quantum is fixed: 2^-24."""
    quanta = value.abs() * 2.0**24
    whole = torch.floor(quanta)
    chance = (bits >> 8).to(torch.float32) * 2.0**-24
    # `fraction >= 1 - chance` is exact where `fraction + chance >= 1` would be rounded itself.
    up = (quanta - whole >= 1.0 - chance).to(torch.float32)
    return torch.copysign((whole + up) * 2.0**-24, value)
