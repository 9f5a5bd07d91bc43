"""The text of the kernel between the two passes: sums of rows become their factors. It sees no elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from ingot.backends.triton_kernels.tile import KERNEL_NAMES, function, indent, numbers, origin
from ingot.declare.formula import FINISHED, Formula
from ingot.declare.targets import Triton

SCORES = ("row_scores", "total_score")

ZEROS = "tl.zeros((BLOCK,), tl.float32)"

Lines = Iterator[str]


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
        yield f"scores = {ZEROS}"
        added = [*score.lines, "scores += tl.where(mask, score, 0.0)"]
        yield from each_row(added, {name for _, name in score.fields})
        yield "row_scores = tl.sum(scores, 0)"
        of_total = Triton("all_", KERNEL_NAMES, {"sums": "total"})
        yield from formula.score(of_total, "total_score").lines

    def factors() -> Lines:
        assert optimizer.finish is not None
        finish = formula.finish(Triton("own_", KERNEL_NAMES, {"total": "whole"}))
        if optimizer.score is None:
            yield from [f"{name} = 0.0" for name in sorted(finish.names & {*SCORES})]
        yield origin(optimizer.finish)
        # Totals are the same for all rows, and are broadcast to one per row: triton-ascend 3.2 cannot divide scalars.
        wholes = sorted(name for record, name in finish.fields if record == "total")
        inner = [f"whole_{name} = tl.where(mask, total_{name}, 1.0)" for name in wholes]
        inner += finish.lines
        for offset, result in zip(("", "rows + "), FINISHED, strict=True):
            whole = f"{result} + {ZEROS}"  # it may be one number for all rows
            inner.append(f"tl.store(factors + {offset}start + i, {whole}, mask)")
        yield from each_row(inner, {name for record, name in finish.fields if record == "row"})

    def body() -> Lines:
        yield from numbers(formula, loaded)
        yield "t = tl.program_id(0)"
        yield "start = tl.load(first_rows + t)"
        yield "count = tl.load(first_rows + t + 1) - start"
        yield "row_root_n = tl.load(roots + 2 * t)"
        yield "total_root_n = tl.load(roots + 2 * t + 1)"
        yield from [f"total_{name} = {ZEROS}" for name in names]
        yield from each_row([f"total_{name} += row_{name}" for name in names], {*names})
        yield from [f"total_{name} = tl.sum(total_{name}, 0)" for name in names]
        yield from scores()
        yield from factors()

    arguments = ["first_rows", "roots", "values", "width", "factors", "rows"]
    names_of = [*arguments, *(f"s_{name}" for name in optimizer.scalars)]
    return function(f"{formula.name}_between", [*names_of, "BLOCK: tl.constexpr"], body())
