"""The tables that kernels read: addresses, sizes, and which program handles what. Kept on the device between steps."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ingot.backends.native import NATIVE
from ingot.backends.triton_kernels.emit import LONG, SHORT
from ingot.reductions.rows import root_lengths

if TYPE_CHECKING:
    from ingot.step.bucket import Bucket

# Elements handled at a time, if all operands have 32 bits and if one has 16: each of 128 threads then loads 16 bytes of
# the narrowest at once. With 1024 elements of 32 bits, Adam with amsgrad spills registers on sm_80. Codes of 8 bits do
# not count.
BLOCKS = {4: 512, 2: 1024}
CHUNK = 8192  # elements of one program
ROW_BLOCK = 256  # rows handled at a time between the passes
VECTOR = 16  # bytes of the widest load
KEPT = 4  # layouts per kind of bucket, and tables per layout


class Addresses(NamedTuple):
    """Where the tensors of a bucket are now.

    Attributes:
        pointers: int64, operand after operand.
        sizes: int64, the number of elements of each tensor.
        row_major: whether the elements of all are in row-major order.
    """

    pointers: bytes
    sizes: bytes
    row_major: bool


def find_addresses(lists: list[list[Tensor]]) -> Addresses | None:
    """Read the addresses of all tensors, in C where the core is there: 0.24 ms instead of 1.4 for 4000 tensors.

    None if a tensor has gaps, or if the operands of one tensor lie in memory in different orders.
    """
    if NATIVE.unavailable() is None:
        found = NATIVE.addresses(lists)
        return None if found is None else Addresses(*found)
    row_major = True
    for tensors in zip(*lists, strict=True):
        if all(tensor.is_contiguous() for tensor in tensors):
            continue
        row_major = False
        whole = torch.empty_like(tensors[0], device="meta").stride() == tensors[0].stride()
        if not whole or any(tensor.stride() != tensors[0].stride() for tensor in tensors):
            return None
    pointers = [tensor.data_ptr() for tensors in lists for tensor in tensors]
    return Addresses(packed(pointers), packed([t.numel() for t in lists[0]]), row_major)


def packed(numbers: list[int]) -> bytes:
    """Numbers as int64, as the core writes them."""
    return bytes((ctypes.c_int64 * len(numbers))(*numbers))


def numbers_of(data: bytes) -> Tensor:
    """A tensor of int64 on the CPU."""
    if not data:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=torch.int64)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device; the host does not wait for it."""
    if device.type in ("cuda", "xpu"):
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Layout:
    """What depends on shapes only; made once for a list of shapes.

    Attributes:
        block: elements handled at a time.
        sizes: elements per tensor.
        items: what each program handles, [items, 2]: the tensor, and the number of the chunk in it.
    """

    def __init__(self, bucket: Bucket, sizes: Tensor) -> None:
        self.device = bucket.params[0].device
        lists = [bucket.params, bucket.grads, *bucket.states]
        narrow = any(tensors[0].element_size() == 2 for tensors in lists)
        self.block = BLOCKS[2 if narrow else 4]
        self.sizes = upload(sizes, self.device)
        self.tables: dict[bytes, Tensor] = {}
        self.places: tuple[list[int], list[int], Tensor] | None = None
        self.scale: tuple[float, Tensor] | None = None
        chunks = torch.stack(numbered((sizes + CHUNK - 1) // CHUNK), 1)
        items = self._items(bucket, sizes, chunks).to(torch.int32)
        self.count = len(items)
        self.items = upload(items, self.device)

    def _items(self, bucket: Bucket, sizes: Tensor, chunks: Tensor) -> Tensor:
        return chunks

    def table(self, pointers: bytes, operands: int) -> Tensor:
        """The addresses, [operands + 1, tensors]; the last row says whether all of a tensor's are aligned.

        Uploaded only if this list of addresses was not met lately.
        """
        if pointers not in self.tables:
            while len(self.tables) >= KEPT:
                self.tables.pop(next(iter(self.tables)))
            addresses = numbers_of(pointers).reshape(operands, -1)
            aligned = (addresses % VECTOR == 0).all(0, keepdim=True)
            self.tables[pointers] = upload(torch.cat([addresses, aligned.long()]), self.device)
        return self.tables[pointers]

    def places_of(self, ordinals: list[int], starts: list[int]) -> Tensor:
        """What the keys of random bits are made of besides the seed, [2, tensors]."""
        if self.places is None or self.places[:2] != (ordinals, starts):
            table = torch.tensor([ordinals, starts], dtype=torch.int64, device="cpu")
            self.places = [*ordinals], [*starts], upload(table, self.device)
        return self.places[2]

    def scale_of(self, scale: float | Tensor) -> Tensor:
        """The factor of all gradients, on the device."""
        if isinstance(scale, Tensor):
            return scale.to(self.device, torch.float32, non_blocking=True)
        if self.scale is None or self.scale[0] != scale:
            self.scale = scale, torch.full((), scale, dtype=torch.float32, device=self.device)
        return self.scale[1]


class Rows(Layout):
    """The same for a two-pass optimizer, with room for its sums.

    Attributes:
        items: [items, 6]: tensor, row in it, piece of the row, column of ``values`` for its sums, row in the bucket,
            and kind: the number of a width in ``SHORT``, or ``LONG``.
        chunks: what ``Layout.items`` are, for the kernel that advances states in blocks.
        lengths: elements per row, per tensor.
        first_rows: the first row of each tensor in the bucket, and the number of rows at the end.
        roots: [tensors, 2]: of the lengths of a row and of the tensor.
        split: [rows, 3]: rows of several pieces, see ``words.collect``.
        values: [sums, rows and pieces]. Rows without elements are never written: they stay zero.
        factors: [2, rows].
    """

    def _items(self, bucket: Bucket, sizes: Tensor, chunks: Tensor) -> Tensor:
        spec, up = bucket.variant.spec, self.device
        in_blocks = any(form.block > 1 for form in bucket.formats)
        self.chunk_count = len(chunks) if in_blocks else 0
        self.chunks = upload(chunks[: self.chunk_count].to(torch.int32), up)
        counts = torch.tensor(bucket.row_counts, dtype=torch.int64, device="cpu")
        lengths = sizes // counts.clamp(min=1)
        first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self.lines = int(first[-1])
        kind = torch.full_like(lengths, LONG)
        step = torch.ones_like(lengths)  # rows per item
        per_row = (lengths + CHUNK - 1) // CHUNK  # items per row
        for name, width in reversed([*enumerate(SHORT)] if spec.rows else []):
            short = (lengths <= width) & (counts > 1)
            kind[short], step[short], per_row[short] = name, self.block // width, 1
        per_row[lengths == 0] = 0
        amounts = (counts + step - 1) // step * per_row
        tensor, number = numbered(amounts)
        row, piece = number // per_row[tensor] * step[tensor], number % per_row[tensor]
        line = first[tensor] + row
        is_split = per_row > 1
        extra = torch.where(is_split, amounts, 0).cumsum(0) - torch.where(is_split, amounts, 0)
        out = torch.where(is_split[tensor], self.lines + extra[tensor] + number, line)
        self.width = self.lines + int(torch.where(is_split, amounts, 0).sum())
        mine = is_split[tensor] & (piece == 0)
        split = torch.stack([line, out, per_row[tensor]], 1)[mine].to(torch.int32)
        self.split_count, self.split = len(split), upload(split, up)
        self.lengths, self.first_rows = upload(lengths, up), upload(first.to(torch.int32), up)
        parts = 2 if bucket.inner_dims else 1
        roots = [root_lengths(shape, parts, spec.rows) for shape in bucket.shapes]
        self.roots = upload(torch.tensor(roots, dtype=torch.float32, device="cpu"), up)
        self.values = torch.zeros(len(spec.sums), self.width, dtype=torch.float32, device=up)
        self.factors = torch.zeros(2, self.lines, dtype=torch.float32, device=up)
        return torch.stack([tensor, row, piece, out, line, kind[tensor]], 1)


def numbered(counts: Tensor) -> list[Tensor]:
    """For ``counts[t]`` items of each tensor t: the tensor and the number in it, item by item."""
    tensor = torch.arange(len(counts), device="cpu").repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return [tensor, torch.arange(len(tensor), device="cpu") - first[tensor]]


def layout_of(bucket: Bucket, sizes: bytes) -> Layout:
    """The layout of a bucket; one for a list of shapes met before is used again."""
    two_pass = bucket.variant.two_pass
    shapes = (tuple(bucket.row_counts), tuple(bucket.shapes)) if two_pass else ()
    key = ("triton", bucket.params[0].device, sizes, shapes)
    kept = bucket.scratch
    if key not in kept:
        while len(kept) >= KEPT:
            kept.pop(next(iter(kept)))
        kept[key] = (Rows if two_pass else Layout)(bucket, numbers_of(sizes))
    layout: Layout = kept[key]
    return layout
