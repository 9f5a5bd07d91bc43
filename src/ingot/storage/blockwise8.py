"""States kept in 8 bits per element, with one scale per block of 128 elements: ``state_dtype="8bit"``.

This text is the specification; every backend writes the same codes and the same scales.

**Layout.** A state is two tensors: ``<name>``, the codes, contiguous, with the shape of the local parameter; and
``<name>_scale``, float32, one number per block. Block b is the elements 128 b to 128 b + 127 of the local tensor in
row-major order of their indices, whatever the layout of the parameter in memory. The last block may be shorter. Codes
are int8 for signed states, uint8 for those declared ``signed=False``.

**Arithmetic.** All of it is float32, each operation rounded to nearest even, none fused with another. With ``x`` the
new value of the state (``r = sqrt(x)`` of an unsigned one), ``largest`` the largest magnitude of ``x`` (of ``r``) in
the block, NaN if there is one (not hidden by the sign bit of a NaN), and P = 127 (251)::

    largest < 1e-30:             inverse = 0,            scale = 0
    largest infinite or NaN:     inverse = 0,            scale = NaN,  and all of the block counts as x = 0
    else:                        inverse = P / largest,  scale = largest * float32(1 / P)

    signed:    q = round_half_even(x * inverse)                    back:  x = float(q) * scale
    unsigned:  y = r * inverse + 1                                 back:  y = float_of_bits((q << 18) + 0x3f800000)
               q = (bits(y) + 0x20000 - 0x3f800000) >> 18                 r = (y - 1) * scale
               q = max(q, 1)                                              x = r * r

The offset 1 turns the exponent and the first five bits of the fraction of y into a code: steps grow with the
value, from 1/32 to 4 of 251. A root is never stored as zero beside one that is not: its update would be divided by
nearly nothing. (In a block of zeros the code 1 stands as well, and decodes to 0 because the scale is 0. A state that
was just made holds zeros only.)

**Stochastic rounding** takes 32 random bits ``h`` per element, those of ``ingot.storage.rounding`` for the operand::

    signed:    u = float(h >> 16) * 2^-16;  q = min(max(floor(x * inverse + u), -127), 127)
    unsigned:  q = (bits(y) + (h >> 14) - 0x3f800000) >> 18;  q = min(max(q, 1), 255)

**Updates.** An elementwise optimizer computes the update from the new states before they are rounded to codes
(``unrounded``), so that a step is as exact as the states it starts from. Two-pass optimizers (LAMB, AdamP) compute it
from the states as stored, in both passes: the second pass has nothing else, and the sums of the first must be those of
the update that the second applies. An optimizer that looks back (Adadelta) reads the old states, decoded.

**NaN and infinity** poison their block: all of it is NaN from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.declare.words import sqrt
from ingot.sharding import dtensor
from ingot.storage.codes import plain, restore
from ingot.storage.format import Bits

BLOCK = 128
FEWEST = 4096  # elements; smaller tensors keep float32, as in bitsandbytes and torchao
SCALE = "_scale"  # the second entry of a state
_ZERO = 1e-30  # a block whose largest magnitude is below counts as zeros
_ONE = 0x3F800000  # the bits of 1.0
_CUT = 18  # bits of the fraction of y that a code has not


class Blockwise8:
    """Codes and scales, see the text of this module; there is one object for signed and one for unsigned states."""

    parts: tuple[str, ...] = ("", SCALE)
    rounds = True
    unrounded = True
    block = BLOCK

    def __init__(self, signed: bool) -> None:
        self.signed = signed
        self.name = "8bit" if signed else "8bit unsigned"
        self.dtype = torch.int8 if signed else torch.uint8
        self.peak = 127.0 if signed else 251.0
        # What the largest number of a block divided by its scale is stored as; the second if it was rounded down.
        self.tops = (127.0, 126.0) if signed else (251.0, 247.0)

    def __repr__(self) -> str:
        return f"Blockwise8({'signed' if self.signed else 'unsigned'})"

    def __reduce__(self) -> str:
        return "SIGNED" if self.signed else "UNSIGNED"

    def new(self, param: Tensor, start: float) -> list[Tensor]:
        """Codes laid out over the processes like the parameter; scales of the local part."""
        local = dtensor.local(param)
        codes = torch.zeros(local.shape, dtype=self.dtype, device=local.device)
        scale = torch.zeros(blocks_of(local), device=local.device, dtype=torch.float32)
        if start:
            value = torch.full(local.shape, start, device=local.device, dtype=torch.float32)
            self.store([codes, scale], value, None)
        return [dtensor.like(param, codes), scale]

    def problem(self, param: Tensor, tensors: Sequence[Any]) -> str | None:
        """Codes have the shape of their parameter, and there is one scale for each block."""
        codes, scale = tensors
        if not isinstance(codes, Tensor):
            return type(codes).__name__
        if codes.shape != param.shape:
            return str(tuple(codes.shape))
        if scale is None and codes.is_floating_point():
            return None  # kept wide until now
        if codes.dtype is not self.dtype:
            return f"of {codes.dtype}, not {self.dtype}"
        count = blocks_of(dtensor.local(param))
        if not isinstance(scale, Tensor) or scale.shape != (count,):
            was = tuple(scale.shape) if isinstance(scale, Tensor) else type(scale).__name__
            return f"in blocks whose scales are {was}, not {(count,)}"
        return None if scale.dtype is torch.float32 else f"with scales of {scale.dtype}"

    def brought(self, param: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Ordinary tensors on the parameter's device; a state that was kept wide is encoded."""
        codes, scale = tensors
        if scale is None:
            return self.encoded(codes.to(param.device))
        return [ordinary(plain(codes), param.device), ordinary(scale, param.device)]

    def encoded(self, value: Tensor) -> list[Tensor]:
        """The tensors of a state that was kept as numbers."""
        codes, scale = self.new(value, 0.0)
        restore(self, [dtensor.local(codes), scale], dtensor.local(value).to(torch.float32))
        return [codes, scale]

    def decoded(self, tensors: Sequence[Tensor]) -> Tensor:
        """The state as numbers of float32, laid out over the processes as its codes are."""
        codes, scale = tensors
        return dtensor.like(codes, self.load([dtensor.local(codes), scale], torch.float32))

    def cut(self, tensors: Sequence[Tensor], rows: slice) -> list[Tensor]:
        """The tensors of some rows, which fill whole blocks unless they are the last."""
        codes, scale = tensors
        length = codes.numel() // max(codes.shape[0], 1)
        first, last = rows.start * length // BLOCK, -(-rows.stop * length // BLOCK)
        return [codes[rows], scale[first:last]]

    def load(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The values; a block decodes to zeros if its scale is 0, and to NaN if it is NaN."""
        codes, scale = tensors
        spread = scale[:, None].expand(-1, BLOCK).reshape(-1)[: codes.numel()]
        return self.values(codes, spread.view(codes.shape)).to(dtype)

    def store(self, tensors: Sequence[Tensor], value: Tensor, bits: Bits | None) -> None:
        """Write values of float32."""
        codes, scale = tensors
        x = self.roots(in_blocks(value))
        largest = x.abs().amax(1) if len(x) else x.new_zeros(0)
        zero, poisoned = largest < _ZERO, ~largest.isfinite()
        # Not `peak / largest`, which torch computes with a reciprocal and a product: two roundings.
        inverse = torch.full_like(largest, self.peak) / largest
        x = x.masked_fill_(poisoned[:, None], 0.0)
        x = x.mul_(inverse.masked_fill_(zero | poisoned, 0.0)[:, None])
        encoded = self.codes(x, None if bits is None else in_blocks(bits()))
        codes.copy_(encoded.view(-1)[: codes.numel()].view(codes.shape))
        scale.copy_(
            (largest * (1.0 / self.peak)).masked_fill_(zero, 0.0).masked_fill_(poisoned, torch.nan)
        )

    def roots(self, value: Tensor) -> Tensor:
        """What is coded: the values, or their roots."""
        return value if self.signed else sqrt(value)

    def values(self, codes: Tensor, scale: Tensor) -> Tensor:
        """What codes stand for."""
        if self.signed:
            return codes.to(torch.float32) * scale
        y = ((codes.to(torch.int32) << _CUT) + _ONE).view(torch.float32)
        root = (y - 1.0) * scale
        return root * root

    def codes(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """The codes of numbers that were divided by their scale, not yet in 8 bits; ``x`` is overwritten."""
        if not self.signed:
            pattern = x.add_(1.0).view(torch.int32)
            pattern += 1 << (_CUT - 1) if noise is None else (noise >> (32 - _CUT)).to(torch.int32)
            return pattern.sub_(_ONE).bitwise_right_shift_(_CUT).clamp_(1, 255)
        if noise is None:
            return x.round_()
        x += (noise >> 16).to(torch.float32) * 2.0**-16
        return x.floor_().clamp_(-127, 127)


SIGNED, UNSIGNED = Blockwise8(signed=True), Blockwise8(signed=False)


def blocks_of(local: Tensor) -> int:
    """The number of blocks of a tensor."""
    return -(-local.numel() // BLOCK)


def in_blocks(value: Tensor) -> Tensor:
    """A copy in row-major order, one row per block, filled up with zeros."""
    result = value.new_zeros(blocks_of(value), BLOCK)
    result.view(-1)[: value.numel()].copy_(value.reshape(-1))
    return result


def ordinary(tensor: Tensor, device: torch.device) -> Tensor:
    """A contiguous tensor on a device that later steps may change; itself if it is one."""
    tensor = tensor.to(device)
    local = dtensor.local(tensor)
    if local.is_inference() or not local.is_contiguous():
        return dtensor.like(tensor, local.clone(memory_format=torch.contiguous_format))
    return tensor
