"""Turns the declared math of src/ingot/optim/*.py into C++: one struct per optimizer and combination of flags.

    python csrc/generate/generate.py                      print the generated header
    python csrc/generate/generate.py --output FOLDER      write it, and sums.h (what the build does)

Standard library only. Anything outside the language of declared math is refused with its file and line.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent.parent / "src"
sys.path.insert(0, str(SOURCES))
from ingot.declare.language import Body, Refused, refuse  # noqa: E402
from ingot.declare.source import Declared, Module, Optimizer, find_optimizer  # noqa: E402
from ingot.declare.sums import SUMS  # noqa: E402

OPTIMIZERS = SOURCES / "ingot" / "optim"


class Writer:
    """Writes the struct of one variant.

    Attributes:
        name: the optimizer and the flags that are on.
        elements: what the loops over elements need; variants in which it is equal can share their loops.
        rest: what is called per row or tensor.
        digest: of both, as C++. Python's syntax trees differ between versions, this text does not.
    """

    def __init__(self, optimizer: Optimizer, flags: Mapping[str, bool]) -> None:
        self.optimizer = optimizer
        self.flags = flags
        self.name = "_".join([optimizer.name, *(flag for flag, on in flags.items() if on)])
        self.states = [n for n, f in optimizer.states.items() if f is None or flags.get(f, False)]
        self.elements = [*self._elements()]
        self.rest = [] if optimizer.finish is None else [*self._score(), *self._finish()]
        text = without_origins([*self.elements, *self.rest])
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]

    def lines(self, elements: str) -> Iterator[str]:
        """The whole struct; ``elements`` is the variant whose loops it shares, or itself."""
        yield f"struct {self.name} {{"
        yield f'  static constexpr const char* kName = "{self.name}";'
        yield f'  static constexpr const char* kDigest = "{self.digest}";'
        yield f"  using Elements = {elements};"
        yield from self.elements
        yield from self.rest
        yield "};"

    def _elements(self) -> Iterator[str]:
        o = self.optimizer
        advance, direction = [*self._advance()], [*self._direction()]
        yield f"  static constexpr int kStates = {len(self.states)};{self._state_comment()}"
        yield f"  static constexpr int kScalars = {len(o.scalars)};"
        yield f"  static constexpr bool kTwoPass = {cpp_bool(o.finish is not None)};"
        yield f"  static constexpr bool kLooksBack = {cpp_bool(o.looks_back)};"
        yield f"  static constexpr bool kDirectionReadsGrad = {cpp_bool(self.reads_grad)};"
        yield from self._sums()
        yield f"  template <class F> struct Scalars {{ F {', '.join(o.scalars)}; }};"
        yield from advance
        yield from direction

    def _state_comment(self) -> str:
        return f"  // {', '.join(self.states)}" if self.states else ""

    def _body(self, declared: Declared) -> tuple[Body, list[str]]:
        """A body that may read the operands this variant has, and the names of all its states."""
        *operands, _ = [argument.arg for argument in declared.function.args.args]
        if operands[:2] != ["param", "grad"]:
            raise refuse(
                declared.path, declared.function.args, "expected param, grad, the states, s"
            )
        absent = frozenset(operands[2:]) - set(self.states)
        body = Body(
            declared.path,
            self._flags(declared),
            {"s": self.optimizer.scalars},
            set(operands) - absent,
            absent,
        )
        return body, operands[2:]

    def _flags(self, declared: Declared) -> dict[str, bool]:
        """The flags a function takes; it may test no others."""
        return {a.arg: self.flags[a.arg] for a in declared.function.args.kwonlyargs}

    def _loads(self, names: Sequence[str], body: Body) -> Iterator[str]:
        taken = [name for name in names if name in self.states and name in body.names_read]
        return indent(f"F {name} = state[{self.states.index(name)}];" for name in taken)

    def _advance(self) -> Iterator[str]:
        declared = self.optimizer.advance
        body, names = self._body(declared)
        results = [f"state[{self.states.index(n)}]" if n in self.states else None for n in names]
        text = body.function(declared.function, results)
        yield from origin(declared)
        yield "  template <class F> static void advance(F param, F grad, F* state, const Scalars<F>& s) {"
        yield from self._loads(names, body)
        yield from indent(text)
        yield "  }"

    def _direction(self) -> Iterator[str]:
        declared = self.optimizer.direction
        body, names = self._body(declared)
        text = body.function(declared.function, ["F update_result"])
        self.reads_grad = "grad" in body.names_read
        yield from origin(declared)
        yield (
            "  template <class F> static F direction"
            "(F param, F grad, const F* state, const Scalars<F>& s) {"
        )
        yield from self._loads(names, body)
        yield from indent([*text, "return update_result;"])
        yield "  }"

    def _sums(self) -> Iterator[str]:
        o = self.optimizer
        if o.finish is None:
            return
        read = self._finish_body(o.finish)[0].fields_read
        yield f"  static constexpr bool kRows = {cpp_bool(o.rows)};"
        yield f"  static constexpr unsigned kSums = {mask(o.sums)};"
        of_row = mask([name for name in o.sums if ("row", name) in read])
        yield f"  static constexpr unsigned kRowSums = {of_row};  // what finish reads of a row"

    def _finish_body(self, declared: Declared) -> tuple[Body, list[str]]:
        fields = (*self.optimizer.sums, "root_n")
        records = {"row": fields, "total": fields, "s": self.optimizer.scalars}
        names = {"row_scores", "total_score"}
        body = Body(declared.path, self._flags(declared), records, names, element=False)
        return body, body.function(declared.function, ["keep_result", "rate_result"])

    def _finish(self) -> Iterator[str]:
        declared = self.optimizer.finish
        assert declared is not None
        yield from origin(declared)
        yield "  template <class F>"
        yield "  static void finish(const Sums<F>& row, const Sums<F>& total, F row_scores, F total_score,"
        yield "                     const Scalars<F>& s, F& keep_result, F& rate_result) {"
        yield from indent(self._finish_body(declared)[1])
        yield "  }"

    def _score(self) -> Iterator[str]:
        o = self.optimizer
        if o.score is None:
            yield "  template <class F> static F score(const Sums<F>&, const Scalars<F>&) { return F(0); }"
            return
        if o.score.function.args.kwonlyargs:
            raise refuse(o.score.path, o.score.function.args, "score takes no flags")
        body = Body(
            o.score.path, {}, {"sums": (*o.sums, "root_n"), "s": o.scalars}, set(), element=False
        )
        yield from origin(o.score)
        yield "  template <class F> static F score(const Sums<F>& sums, const Scalars<F>& s) {"
        yield from indent(body.function(o.score.function, ["F score_result"]))
        yield from indent(["return score_result;"])
        yield "  }"


def cpp_bool(value: bool) -> str:
    """A boolean as C++ spells it."""
    return "true" if value else "false"


def mask(sums: Sequence[str]) -> str:
    """Bit k stands for the k-th field of Sums."""
    return " | ".join(f"1u << {[*SUMS].index(name)}" for name in sums) or "0"


def origin(declared: Declared) -> Iterator[str]:
    """A comment that says where a function was declared."""
    yield f"  // {declared.function.name}() of {declared.path.name}, line {declared.function.lineno}"


def without_origins(lines: Sequence[str]) -> str:
    """What two variants are compared by: not by where they were declared."""
    return "\n".join(line for line in lines if not line.startswith("  // "))


def indent(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Lines of a function body."""
    return (f"    {line}" for line in lines)


def writers(paths: Sequence[Path]) -> list[Writer]:
    """One for each variant of the optimizers declared in ``paths``."""
    found = [find_optimizer(Module(path)) for path in sorted(paths)]
    return [Writer(o, flags) for o in found if o is not None for flags in o.variants()]


def notice(origin: str) -> str:
    """The first line of a generated file."""
    return f"// Generated by csrc/generate/generate.py from {origin}; do not edit."


def sums_header() -> str:
    """The table of reductions, for macros ``X(name, one factor, the other)``."""
    rows = [f"X({name}, {one}, {two})" for name, (one, two) in SUMS.items()]
    lines = [notice("src/ingot/declare/sums.py"), "#pragma once", ""]
    return "\n".join([*lines, f"#define INGOT_SUMS(X) {' '.join(rows)}", ""])


def header(paths: Sequence[Path]) -> str:
    """The generated header for the optimizers declared in ``paths``."""
    lines = [notice("src/ingot/optim/*.py"), ""]
    variants = writers(paths)
    first: dict[str, str] = {}
    for variant in variants:
        elements = first.setdefault(without_origins(variant.elements), variant.name)
        lines += [*variant.lines(elements), ""]
    lines += [f"#define INGOT_VARIANTS(X) {' '.join(f'X({v.name})' for v in variants)}", ""]
    return "\n".join(lines)


def main() -> None:
    """Print or write the headers; a refusal is an error message with file and line."""
    parser = argparse.ArgumentParser(description="Turn declared math into C++.")
    parser.add_argument(
        "paths", nargs="*", type=Path, help="default: every file of src/ingot/optim"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    try:
        text = header(arguments.paths or [*OPTIMIZERS.glob("*.py")])
    except Refused as refused:
        sys.exit(f"error: {refused}")
    if arguments.output:
        (arguments.output / "generated.h").write_text(text, encoding="utf-8")
        (arguments.output / "sums.h").write_text(sums_header(), encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
