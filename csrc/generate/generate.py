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
from ingot.declare.formula import Formula, Translated  # noqa: E402
from ingot.declare.language import Refused  # noqa: E402
from ingot.declare.source import Declared, Module, Optimizer, find_optimizer  # noqa: E402
from ingot.declare.sums import SUMS  # noqa: E402
from ingot.declare.targets import Cpp  # noqa: E402

CPP = Cpp()
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
        self.formula = Formula(optimizer, flags)
        self.name, self.states = self.formula.name, self.formula.states
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
        results = {name: f"state[{k}]" for k, name in enumerate(self.states)}
        advance = self.formula.advance(CPP, results)
        direction = self.formula.direction(CPP, "F update_result")
        yield f"  static constexpr int kStates = {len(self.states)};{self._state_comment()}"
        bits = [f"1u << {k}" for k, name in enumerate(self.states) if name in o.unsigned]
        yield f"  static constexpr unsigned kUnsigned = {' | '.join(bits) or '0'};"
        yield f"  static constexpr int kScalars = {len(o.scalars)};"
        yield f"  static constexpr bool kTwoPass = {cpp_bool(o.finish is not None)};"
        yield f"  static constexpr bool kLooksBack = {cpp_bool(o.looks_back)};"
        yield f"  static constexpr bool kDirectionReadsGrad = {cpp_bool('grad' in direction.names)};"
        yield from self._sums()
        yield f"  template <class F> struct Scalars {{ F {', '.join(o.scalars)}; }};"
        yield from origin(o.advance)
        yield "  template <class F> static void advance(F param, F grad, F* state, const Scalars<F>& s) {"
        yield from self._loads(advance)
        yield from indent(advance.lines)
        yield "  }"
        yield from origin(o.direction)
        yield (
            "  template <class F> static F direction"
            "(F param, F grad, const F* state, const Scalars<F>& s) {"
        )
        yield from self._loads(direction)
        yield from indent([*direction.lines, "return update_result;"])
        yield "  }"

    def _state_comment(self) -> str:
        return f"  // {', '.join(self.states)}" if self.states else ""

    def _loads(self, function: Translated) -> Iterator[str]:
        taken = [n for n in function.states if n in self.states and n in function.names]
        return indent(f"F {name} = state[{self.states.index(name)}];" for name in taken)

    def _sums(self) -> Iterator[str]:
        o = self.optimizer
        if o.finish is None:
            return
        read = self.formula.finish(CPP).fields
        yield f"  static constexpr bool kRows = {cpp_bool(o.rows)};"
        yield f"  static constexpr unsigned kSums = {mask(o.sums)};"
        of_row = mask([name for name in o.sums if ("row", name) in read])
        yield f"  static constexpr unsigned kRowSums = {of_row};  // what finish reads of a row"

    def _finish(self) -> Iterator[str]:
        declared = self.optimizer.finish
        assert declared is not None
        yield from origin(declared)
        yield "  template <class F>"
        yield "  static void finish(const Sums<F>& row, const Sums<F>& total, F row_scores, F total_score,"
        yield "                     const Scalars<F>& s, F& keep_result, F& rate_result) {"
        yield from indent(self.formula.finish(CPP).lines)
        yield "  }"

    def _score(self) -> Iterator[str]:
        o = self.optimizer
        if o.score is None:
            yield "  template <class F> static F score(const Sums<F>&, const Scalars<F>&) { return F(0); }"
            return
        yield from origin(o.score)
        yield "  template <class F> static F score(const Sums<F>& sums, const Scalars<F>& s) {"
        yield from indent(self.formula.score(CPP, "F score_result").lines)
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
