"""The text of the kernels of one variant and mix of types: readable Triton, emitted from the declared math.

Every kernel is one flat function. A program handles one chunk: tensor by tensor, CHUNK elements at a time in blocks of
BLOCK (see ``layout.BLOCKS``). Where all addresses are divisible by 16 bytes and the number of elements by 8, the
compiler is told so, and reads and writes 16 bytes at a time; ``count // 8 * 8`` shows it that a mask is the same over
such a vector.

Two-pass optimizers have three kernels: ``first`` advances the states and adds up products per row (one writer per sum,
so no atomics), ``between`` turns sums into factors, ``second`` applies them. A program of the first and second handles
an item: a piece of one long row, or a tile of short rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

from ingot.backends.triton_kernels.tile import (
    KERNEL_NAMES,
    At,
    Tile,
    Types,
    function,
    indent,
    origin,
    plain,
    vectors,
)
from ingot.declare.formula import FINISHED, Formula
from ingot.declare.sums import SUMS
from ingot.declare.targets import Triton

SHORT = (
    16,
    128,
)  # rows of up to so many elements are handled many at a time, in tiles of this width
SCORES = ("row_scores", "total_score")
LONG = -1  # the kind of an item that is a piece of one row

Lines = Iterator[str]


def elementwise(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The kernel of an elementwise optimizer.

    Args:
        formula: the variant.
        types: how its numbers are stored.
        loaded: the scalars that the kernel gets as addresses, because they are made on the device.
    """
    tile = Tile(formula, types)

    def body() -> Lines:
        yield from numbers(formula, loaded)
        yield "item = items + 2 * tl.program_id(0)"
        yield "t = tl.load(item)"
        yield "start = tl.load(item + 1).to(tl.int64) * CHUNK"
        yield "count = tl.minimum(tl.load(sizes + t) - start, CHUNK).to(tl.int32)"
        yield from tile.addresses()
        yield from both_ways(
            tile,
            lambda at: [*tile.load(at), *tile.advance(at), *tile.apply(at, "s_keep", "s_rate")],
        )

    return kernel(formula.name, tile, ["table", "sizes", "items", "tensors"], body())


def first(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The first pass: new states, and sums of products per row or piece of a row."""
    tile, names = Tile(formula, types), formula.optimizer.sums

    def products(at: At, prefix: str, sign: str) -> Lines:
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


def between(formula: Formula, loaded: frozenset[str] = frozenset()) -> str:
    """Between the passes: one program per tensor adds up its rows and finds the factors of each."""
    optimizer, names = formula.optimizer, formula.optimizer.sums

    def each_row(inner: Sequence[str], read: Set[str]) -> Lines:
        yield "for begin in range(0, count, BLOCK):"
        yield "    i = begin + tl.arange(0, BLOCK)"
        yield "    mask = i < count"
        for k, name in enumerate(names):
            if name in read:
                place = f"values + {k} * width + start + i"
                yield f"    row_{name} = tl.load({place}, mask, other=0.0)"
        yield from indent(inner)

    def scores() -> Lines:
        if optimizer.score is None:
            return
        score = formula.score(Triton("own_", KERNEL_NAMES, {"sums": "row"}), "score")
        yield origin(optimizer.score)
        yield "scores = tl.zeros((BLOCK,), tl.float32)"
        added = [*score.lines, "scores += tl.where(mask, score, 0.0)"]
        yield from each_row(added, {name for _, name in score.fields})
        yield "row_scores = tl.sum(scores, 0)"
        of_total = Triton("all_", KERNEL_NAMES, {"sums": "total"})
        yield from formula.score(of_total, "total_score").lines

    def factors() -> Lines:
        assert optimizer.finish is not None
        finish = formula.finish(Triton("own_", KERNEL_NAMES))
        if optimizer.score is None:
            yield from [f"{name} = 0.0" for name in sorted(finish.names & {*SCORES})]
        yield origin(optimizer.finish)
        inner = [*finish.lines]
        for offset, result in zip(("", "rows + "), FINISHED, strict=True):
            whole = (
                f"{result} + tl.zeros((BLOCK,), tl.float32)"  # it may be one number for all rows
            )
            inner.append(f"tl.store(factors + {offset}start + i, {whole}, mask)")
        yield from each_row(inner, {name for record, name in finish.fields if record == "row"})

    def body() -> Lines:
        yield from numbers(formula, loaded)
        yield "t = tl.program_id(0)"
        yield "start = tl.load(first_rows + t)"
        yield "count = tl.load(first_rows + t + 1) - start"
        yield "row_root_n = tl.load(roots + 2 * t)"
        yield "total_root_n = tl.load(roots + 2 * t + 1)"
        yield from [f"total_{name} = tl.zeros((BLOCK,), tl.float32)" for name in names]
        yield from each_row([f"total_{name} += row_{name}" for name in names], {*names})
        yield from [f"total_{name} = tl.sum(total_{name}, 0)" for name in names]
        yield from scores()
        yield from factors()

    arguments = ["first_rows", "roots", "values", "width", "factors", "rows"]
    names_of = [*arguments, *(f"s_{name}" for name in optimizer.scalars)]
    return function(f"{formula.name}_between", [*names_of, "BLOCK: tl.constexpr"], body())


def second(formula: Formula, types: Types, loaded: frozenset[str] = frozenset()) -> str:
    """The second pass: the update again, from what is stored, and the factors of each row."""
    tile = Tile(formula, types)

    def applied(at: At) -> list[str]:
        return [
            *tile.load(at, second_pass=True),
            *tile.direction(),
            *tile.apply(at, "keep", "rate"),
        ]

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


def numbers(formula: Formula, loaded: frozenset[str]) -> Lines:
    """Read the scalars that the device made; the others are arguments by value."""
    named = [f"s_{name}" for name in formula.optimizer.scalars if name in loaded]
    return (f"{name} = tl.load({name})" for name in named)


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
