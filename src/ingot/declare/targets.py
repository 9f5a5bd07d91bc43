"""How the languages that declared math is translated into spell it. Standard library only: the generator reads this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Target(Protocol):
    """The spelling of one language. What may be said at all is decided in ``ingot.declare.language``."""

    def constant(self, value: float) -> str:
        """A number."""

    def field(self, record: str, name: str) -> str:
        """A scalar of a record: of ``s``, ``sums``, ``row`` or ``total``."""

    def binary(self, left: str, sign: str, right: str) -> str:
        """Two operands and a sign between them, safe to stand in another expression."""

    def call(self, word: str, arguments: Sequence[str]) -> str:
        """One of the words of ``ingot.declare.words``."""

    def local(self, name: str) -> str:
        """What a variable of a declared function is called."""

    def assignment(self, name: str, text: str, *, new: bool, condition: bool) -> str:
        """A statement that gives a name a value; ``condition`` if that is a comparison."""


def bare(text: str) -> str:
    """A sum or product without the parentheses around the whole of it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


class Cpp:
    """C++ over a type ``F`` with the operators and functions of csrc/loops/elements.h."""

    def constant(self, value: float) -> str:
        """Of the type of the elements, so that nothing is computed in double."""
        return f"F({value!r})"

    def field(self, record: str, name: str) -> str:
        """A member of a struct."""
        return f"{record}.{name}"

    def binary(self, left: str, sign: str, right: str) -> str:
        """Operators are the same."""
        return f"({left} {sign} {right})"

    def call(self, word: str, arguments: Sequence[str]) -> str:
        """The type is spelled out, so that a constant and an element may meet in one call."""
        return f"{word}<F>({', '.join(arguments)})"

    def local(self, name: str) -> str:
        """The same: every declared function becomes a function."""
        return name

    def assignment(self, name: str, text: str, *, new: bool, condition: bool) -> str:
        """The first one declares the variable."""
        kind = ("bool " if condition else "F ") if new else ""
        return f"{kind}{name} = {text};"


class Triton:
    """Triton's Python, in the part of it that the Triton of Ascend (3.2) also has: no tuples, no records.

    Division and root are the correctly rounded ones: ``/`` and ``tl.sqrt`` are approximations on GPUs.

    Declared functions become statements of one kernel, so what they assign to must not hide what the kernel has.

    Args:
        prefix: put before the variables of a function that have one of the names ``taken``.
        taken: the names that mean something else in the kernel.
        records: other names for records, for a function whose record is a row in one place and a total in another.
    """

    WORDS: Mapping[str, str] = {
        "sqrt": "tl.sqrt_rn({})",
        "absolute": "tl.abs({})",
        "maximum": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
        "where": "tl.where({}, {}, {})",
    }

    def __init__(
        self,
        prefix: str = "",
        taken: frozenset[str] = frozenset(),
        records: Mapping[str, str] | None = None,
    ) -> None:
        self.prefix, self.taken, self.records = prefix, taken, records or {}

    def constant(self, value: float) -> str:
        """A literal, which takes the type of what it meets."""
        return repr(value)

    def field(self, record: str, name: str) -> str:
        """An argument or variable of its own."""
        return f"{self.records.get(record, record)}_{name}"

    def binary(self, left: str, sign: str, right: str) -> str:
        """Operators are the same, but for the division."""
        if sign == "/":
            return f"tl.div_rn({bare(left)}, {bare(right)})"
        return f"({left} {sign} {right})"

    def call(self, word: str, arguments: Sequence[str]) -> str:
        """The functions of ``triton.language``."""
        return self.WORDS[word].format(*map(bare, arguments))

    def local(self, name: str) -> str:
        """A name of its own where the kernel has one like it."""
        return self.prefix + name if name in self.taken else name

    def assignment(self, name: str, text: str, *, new: bool, condition: bool) -> str:
        """Python needs no declaration."""
        return f"{name} = {text}"
