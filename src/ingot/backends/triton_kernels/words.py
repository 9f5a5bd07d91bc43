"""What emitted kernels call: rounding and random bits as ``ingot.storage.rounding`` has them, and adding up pieces.

Imported only where Triton is.
"""

import triton
import triton.language as tl


@triton.jit
def nearest_float16(x):
    """A float32 number rounded to what float16 can hold."""
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def nearest_bfloat16(x):
    """The same for bfloat16, in integers: Triton's interpreter cuts digits off instead of rounding."""
    bits = x.to(tl.uint32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return tl.where(x == x, bits, 0x7FC00000).to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def mix(x):
    """A hash of 32 bits; ``ingot.storage.rounding.mix``."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def random_bits(index, key):
    """32 random bits per element from its int64 index; ``ingot.storage.rounding.random_bits``."""
    x = index.to(tl.uint32) * 0x9E3779B9 + key
    x ^= (index >> 32).to(tl.uint32) * 0x85EBCA6B
    return mix(x)


@triton.jit
def tensor_key(ordinal, start, seed, OPERAND: tl.constexpr):
    """The key of one operand of a tensor; ``ingot.storage.rounding.Rounding.keys``."""
    key = random_bits(ordinal * 8 + OPERAND, seed.to(tl.uint32))
    return key + start.to(tl.uint32) * 0x9E3779B9


@triton.jit
def stochastic_bfloat16(x, bits):
    """``ingot.storage.rounding.round_stochastic`` to bfloat16."""
    pattern = x.to(tl.uint32, bitcast=True)
    rounded = ((pattern + (bits >> 16)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) <= 3.3895313892515355e38, rounded, nearest_bfloat16(x))


@triton.jit
def stochastic_float16(x, bits):
    """The same to float16, whose quantum is fixed below 2^-14: 2^-24."""
    pattern = x.to(tl.uint32, bitcast=True)
    rounded = ((pattern + (bits >> 19)) & 0xFFFFE000).to(tl.float32, bitcast=True)
    quanta = tl.abs(x) * 16777216.0
    whole = tl.floor(quanta)
    chance = (bits >> 8).to(tl.float32) * 5.960464477539063e-08
    up = tl.where(quanta - whole >= 1.0 - chance, 1.0, 0.0)
    small = ((whole + up) * 5.960464477539063e-08).to(tl.uint32, bitcast=True)
    small = (small | (pattern & 0x80000000)).to(tl.float32, bitcast=True)
    rounded = tl.where(tl.abs(x) < 6.103515625e-05, small, rounded)
    return tl.where(tl.abs(x) <= 65504.0, rounded, nearest_float16(x))


@triton.jit(do_not_specialize=["values", "width", "split"])
def collect(values, width, split, SUMS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the pieces of one row that is longer than a chunk, in a fixed order.

    ``split`` is [rows, 3]: the column of the row, that of its first piece, and the number of pieces.
    """
    entry = split + 3 * tl.program_id(0)
    row = tl.load(entry)
    piece = tl.load(entry + 1)
    count = tl.load(entry + 2)
    for k in tl.static_range(SUMS):
        total = tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, count, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            total += tl.load(values + k * width + piece + i, i < count, other=0.0)
        tl.store(values + k * width + row, tl.sum(total, 0))
