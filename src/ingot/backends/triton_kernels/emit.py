"""The text of the kernels of one variant and mix of types: readable Triton, emitted from the declared math.

Every kernel is one flat function. A program handles one chunk: tensor by tensor, CHUNK elements at a time in blocks of
BLOCK (see ``layout.BLOCKS``). Where all addresses are divisible by 16 bytes and the number of elements by 8, the
compiler is told so, and reads and writes 16 bytes at a time; ``count // 8 * 8`` shows it that a mask is the same over
such a vector.

Two-pass optimizers have three kernels: ``first`` advances the states and adds up products per row (one writer per sum,
so no atomics), ``between`` turns sums into factors, ``second`` applies them. A program of the first and second handles
an item: a piece of one long row, or a tile of short rows. States in blocks of 8-bit codes are advanced by a kernel
before the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ingot.backends.triton_kernels.tile import (
    At,
    Tile,
    Types,
    function,
    indent,
    numbers,
    plain,
    vectors,
)
from ingot.declare.formula import Formula
from ingot.declare.sums import SUMS
from ingot.declare.targets import Triton

# Rows of up to so many elements are handled many at a time, in tiles of this width.
SHORT = (16, 128)
# The kind of an item that is a piece of one row.
LONG = -1

Lines = Iterator[str]


def elementwise(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The kernel of an elementwise optimizer.

    Args:
        formula: the variant.
        types: how its numbers are stored.
        loaded: the scalars that the kernel gets as addresses, because they are made on the device.
    """
    tile = Tile(formula, types)

    def inner(at: At) -> list[str]:
        return [*tile.load(at), *tile.advance(at), *tile.apply(at, "s_keep", "s_rate")]

    return over_chunks(formula.name, tile, loaded, inner)


def advance(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """Only the new states, before the first pass, for states in blocks: rows begin and end inside of blocks."""
    tile = Tile(formula, types)
    read = formula.advance(Triton(), {name: name for name in formula.states}).names

    def inner(at: At) -> list[str]:
        return [*tile.load(at, read), *tile.new_states(at)]

    return over_chunks(f"{formula.name}_advance", tile, loaded, inner)


def over_chunks(
    name: str, tile: Tile, loaded: frozenset[str], inner: Callable[[At], Sequence[str]]
) -> str:
    """A kernel of which each program handles a chunk of a tensor, whatever its rows."""

    def body() -> Lines:
        yield from numbers(tile.formula, loaded)
        yield "item = items + 2 * tl.program_id(0)"
        yield "t = tl.load(item)"
        yield "start = tl.load(item + 1).to(tl.int64) * CHUNK"
        yield "count = tl.minimum(tl.load(sizes + t) - start, CHUNK).to(tl.int32)"
        yield from tile.addresses()
        yield from both_ways(tile, inner)

    return kernel(name, tile, ["table", "sizes", "items", "tensors"], body())


def first(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The first pass: new states, if they are not in blocks, and sums of products per row or piece of a row."""
    tile, names = Tile(formula, types), formula.optimizer.sums
    factors = {factor for name in names for factor in SUMS[name]} - {"update"}

    def products(at: At, prefix: str, sign: str) -> Lines:
        if types.in_blocks:
            yield from tile.updated(at, factors)
        else:
            yield from [*tile.load(at), *tile.advance(at)]
        for name in names:
            one, two = SUMS[name]
            yield f"{prefix}_{name} {sign} tl.where(mask, {one} * {two}, 0.0)"

    def body() -> Lines:
        yield from numbers(formula, loaded)
        yield from item(tile)
        yield f"if kind == {LONG}:"
        zeros = [f"sum_{name} = tl.zeros((BLOCK,), tl.float32)" for name in names]
        yield from indent(zeros)
        yield from indent(
            both_ways(tile, lambda at: [*products(at, "sum", "+=")], "start % 8 == 0")
        )
        places = [f"values + {k} * width + out" for k in range(len(names))]
        sums = [f"tl.sum(sum_{name}, 0)" for name in names]
        yield from indent([f"tl.store({p}, {s})" for p, s in zip(places, sums, strict=True)])
        for kind, width in short_rows(formula):
            yield f"if kind == {kind}:  # rows of up to {width} elements"
            yield from indent(rows_of(width))
            yield from indent(products(plain, "row", "="))
            stored = [f"tl.sum(row_{name}, 1), rows * wide < count" for name in names]
            pairs = zip(places, stored, strict=True)
            yield from indent([f"tl.store({p} + rows, {s})" for p, s in pairs])

    arguments = ["table", "sizes", "lengths", "items", "tensors", "values", "width"]
    return kernel(f"{formula.name}_first", tile, arguments, body())


def second(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The second pass: the update again, from what is stored, and the factors of each row."""
    tile = Tile(formula, types)

    def applied(at: At) -> list[str]:
        return [*tile.updated(at), *tile.apply(at, "keep", "rate")]

    def body() -> Lines:
        yield from numbers(formula, loaded)
        yield from item(tile)
        yield f"if kind == {LONG}:"
        yield "    keep = tl.load(factors + line)"
        yield "    rate = tl.load(factors + lines + line)"
        yield from indent(both_ways(tile, applied, "start % 8 == 0"))
        for kind, width in short_rows(formula):
            yield f"if kind == {kind}:  # rows of up to {width} elements"
            yield from indent(rows_of(width))
            mine = "rows * wide < count, other=0.0)[:, None]"
            yield f"    keep = tl.load(factors + line + rows, {mine}"
            yield f"    rate = tl.load(factors + lines + line + rows, {mine}"
            yield from indent(applied(plain))

    arguments = ["table", "sizes", "lengths", "items", "tensors", "factors", "lines"]
    return kernel(f"{formula.name}_second", tile, arguments, body())


def item(tile: Tile) -> Lines:
    """What a program of a two-pass kernel handles, see ``layout.Rows``."""
    yield "item = items + 6 * tl.program_id(0)"
    for place, name in enumerate(("t", "row", "piece", "out", "line", "kind")):
        yield f"{name} = tl.load(item + {place})" if place else f"{name} = tl.load(item)"
    yield "length = tl.load(lengths + t)"
    yield "start = row.to(tl.int64) * length + piece.to(tl.int64) * CHUNK"
    yield "count = tl.minimum(length - piece.to(tl.int64) * CHUNK, CHUNK).to(tl.int32)"
    yield from tile.addresses()


def short_rows(formula: Formula) -> list[tuple[int, int]]:
    """The kinds of items that are tiles of short rows; none where the optimizer does not look at rows."""
    return [*enumerate(SHORT)] if formula.optimizer.rows else []


def rows_of(width: int) -> Lines:
    """The elements of a tile of short rows; the last tile of a tensor is not full."""
    yield f"rows = tl.arange(0, BLOCK // {width})"
    yield f"columns = tl.arange(0, {width})"
    yield "wide = length.to(tl.int32)"
    yield f"count = tl.minimum(tl.load(sizes + t) - start, wide * (BLOCK // {width})).to(tl.int32)"
    yield "i = rows[:, None] * wide + columns[None, :]"
    yield "mask = (columns[None, :] < wide) & (i < count)"


def both_ways(tile: Tile, inner: Callable[[At], Sequence[str]], also: str = "") -> Lines:
    """A loop over the blocks of a chunk, once in vectors of 16 bytes, once element by element."""
    conditions = ["count % 8 == 0", f"tl.load(table + {len(tile.operands)} * tensors + t) != 0"]
    conditions += [also] if also else []
    yield f"if {' & '.join(f'({condition})' for condition in conditions)}:"
    yield from indent(blocks("count // 8 * 8", inner(vectors)))
    yield "else:"
    yield from indent(blocks("count", inner(plain)))


def blocks(count: str, inner: Sequence[str]) -> Lines:
    """A loop over blocks."""
    yield f"for begin in range(0, {count}, BLOCK):"
    yield "    i = begin + tl.arange(0, BLOCK)"
    yield f"    mask = i < {count}"
    yield from indent(inner)


def kernel(name: str, tile: Tile, tables: list[str], body: Lines) -> str:
    """A kernel over elements."""
    rounding = ["places", "seed"] if tile.types.stochastic else []
    scalars = [f"s_{field}" for field in tile.formula.optimizer.scalars]
    constants = ["CHUNK: tl.constexpr", "BLOCK: tl.constexpr"]
    scale = "grad_scale = tl.load(grad_scale)"
    return function(name, [*tables, *rounding, "grad_scale", *scalars, *constants], [scale, *body])
