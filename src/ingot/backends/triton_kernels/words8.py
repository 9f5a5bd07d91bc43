"""What emitted kernels call for states in 8 bits: the codes and scales that ``ingot.storage.blockwise8`` specifies.

Imported only where Triton is. ``x`` is what is coded: the new value of a signed state (int8), the root of an unsigned
one (uint8). Tiles hold whole blocks, one after the other.
"""

import triton
import triton.language as tl

from ingot.storage import blockwise8

SIZE = tl.constexpr(blockwise8.BLOCK)


@triton.jit
def decode_int8(codes, scale):
    """The numbers that codes of a signed state stand for."""
    return codes.to(tl.float32) * scale


@triton.jit
def decode_uint8(codes, scale):
    """The same for an unsigned state."""
    y = ((codes.to(tl.int32) << 18) + 0x3F800000).to(tl.float32, bitcast=True)
    root = (y - 1.0) * scale
    return root * root


@triton.jit
def largest_of_blocks(x, mask, BLOCK: tl.constexpr):
    """The largest magnitude of each block, as bits: they compare like the numbers, and NaN is larger than infinity."""
    bits = tl.where(mask, x, 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(tl.reshape(bits, (BLOCK // SIZE, SIZE)), 1)


@triton.jit
def block_scale(largest, PEAK: tl.constexpr):
    """The scale of each block: 0 for zeros, NaN if it holds NaN or infinity."""
    number = largest.to(tl.float32, bitcast=True)
    scale = tl.where(number < 1e-30, 0.0, number * (1.0 / PEAK))
    return tl.where(largest < 0x7F800000, scale, float("nan"))


@triton.jit
def block_inverse(largest, PEAK: tl.constexpr, BLOCK: tl.constexpr):
    """What the numbers of each block are multiplied by to become codes, for every element."""
    number = largest.to(tl.float32, bitcast=True)
    usable = (number >= 1e-30) & (largest < 0x7F800000)
    inverse = tl.where(usable, tl.div_rn(PEAK, tl.where(usable, number, 1.0)), 0.0)
    return tl.reshape(tl.broadcast_to(inverse[:, None], (BLOCK // SIZE, SIZE)), (BLOCK,))


@triton.jit
def scaled(x, inverse):
    """Numbers divided by their scale; NaN and infinity, whose blocks have the inverse 0, count as 0."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0) * inverse


@triton.jit
def encode_int8(x, inverse):
    """Codes of a signed state: the addition of 1.5 * 2^23 rounds to an integer, in the lowest bits of the sum."""
    return ((scaled(x, inverse) + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000).to(tl.int8)


@triton.jit
def stochastic_int8(x, inverse, bits):
    """The same, rounded stochastically."""
    whole = tl.floor(scaled(x, inverse) + (bits >> 16).to(tl.float32) * 1.52587890625e-05)
    return tl.minimum(tl.maximum(whole.to(tl.int32), -127), 127).to(tl.int8)


@triton.jit
def encode_uint8(x, inverse):
    """Codes of an unsigned state."""
    bits = (scaled(x, inverse) + 1.0).to(tl.int32, bitcast=True)
    return tl.maximum((bits + (0x20000 - 0x3F800000)) >> 18, 1).to(tl.uint8)


@triton.jit
def stochastic_uint8(x, inverse, bits):
    """The same, rounded stochastically."""
    y = (scaled(x, inverse) + 1.0).to(tl.int32, bitcast=True)
    code = (y + (bits >> 14).to(tl.int32) - 0x3F800000) >> 18
    return tl.minimum(tl.maximum(code, 1), 255).to(tl.uint8)
