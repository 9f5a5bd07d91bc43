"""Which list operator computes which part of a formula: lerp, addcmul, addcdiv, additions with a factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingot.declare.trace import Value

if TYPE_CHECKING:
    from ingot.backends.emit import Facts

# sign or word -> the list operator and how its operands stand
UNARY = {"sqrt": "sqrt", "abs": "abs", "neg": "neg"}
BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "div", "maximum": "maximum"}
# Of these, list operators take a number that is a 0-dim tensor; others would wait for it.
TAKES_TENSOR = "+*/"


@dataclass(frozen=True)
class Instruction:
    """One list operator.

    Attributes:
        value: what it computes.
        operator: ``_foreach_<operator>``; "" where torch has none and each tensor is taken by itself.
        lists: its operands that are lists of tensors.
        numbers: the text of its other operands, after the lists; with holes for names if it has no operator.
        targets: the operands that its result may overwrite.
    """

    value: Value
    operator: str
    lists: tuple[Value, ...]
    numbers: str = ""
    targets: tuple[int, ...] = (0,)

    def text(self, names: Sequence[str], *, in_place: bool) -> str:
        """The call, over lists of these names."""
        if not self.operator:
            each = [f"e{i}" for i in range(len(names))]
            over = names[0] if len(names) == 1 else f"zip({', '.join(names)}, strict=True)"
            return f"[{self.numbers.format(*each)} for {', '.join(each)} in {over}]"
        arguments = ", ".join([*names, *([self.numbers] if self.numbers else [])])
        return f"torch._foreach_{self.operator}{'_' if in_place else ''}({arguments})"


def number(value: Value) -> str:
    """The text of a number."""
    match value.op, value.args:
        case "scalar", (name,):
            return f"s.{name}"
        case "constant", (constant,):
            return repr(constant)
        case "neg", (operand,):
            return f"-{number(operand)}"
        case op, (one, two) if op in "+-*/":
            return f"({number(one)} {op} {number(two)})"
    raise AssertionError(value)


def negated(text: str) -> str:
    """The text of a number with the other sign."""
    return text.removeprefix("-") if text.startswith("-") else f"-{text}"


class Selection:
    """The instructions that compute some values, in an order in which operands are overwritten last."""

    def __init__(self, wanted: dict[str, Value], exact: bool, facts: Facts) -> None:
        self.wanted, self.exact, self.facts = wanted, exact, facts
        self.uses: Counter[Value] = Counter(wanted.values())
        seen: set[Value] = set()
        for value in wanted.values():
            self._count(value, seen)
        self.instructions: dict[Value, Instruction] = {}
        self.inputs: dict[Value, str] = {}  # by identity: ``==`` of values is a value
        for value in wanted.values():
            self._visit(value)

    @property
    def order(self) -> list[Instruction]:
        """The instructions as they are to be run."""
        return [*self.instructions.values()]

    def _count(self, value: Value, seen: set[Value]) -> None:
        if value not in seen:
            seen.add(value)
            self.uses.update(value.operands)
            for operand in value.operands:
                self._count(operand, seen)

    def _visit(self, value: Value) -> None:
        """Add the instructions of a value after those of its operands; the first operand, the target, comes last."""
        if value in self.instructions or value in self.inputs:
            return
        if value.op == "input":
            self.inputs[value] = value.args[0]
            return
        chosen = self._select(value)
        for operand in (*chosen.lists[1:], chosen.lists[0]):
            self._visit(operand)
        self.instructions[value] = chosen

    def _select(self, value: Value) -> Instruction:
        if not self.exact and value.op in "+-":
            for found in self._sums(value):
                return found
        one, *more = value.args
        if value.op in UNARY:
            return Instruction(value, UNARY[value.op], (one,))
        if value.op in BINARY:
            (two,) = more
            if two.is_number:
                if self._is_plain(two) or value.op in TAKES_TENSOR:
                    return Instruction(value, BINARY[value.op], (one,), number(two))
                return self._one_by_one(value)
            if not one.is_number:
                both = (0, 1) if value.op in "+*" and one is not two else (0,)
                return Instruction(value, BINARY[value.op], (one, two), targets=both)
            if value.op in ("+", "*"):
                return Instruction(value, BINARY[value.op], (two,), number(one))
        return self._one_by_one(value)

    def _sums(self, value: Value) -> Iterator[Instruction]:
        """``x + y`` where an operand is a product or a quotient that nobody else needs.

        A factor costs nothing inside of these operators, so that a scaled element may be needed elsewhere, too.
        """
        left, right = value.args
        (a, _), (b, weight) = factored(left), factored(right)
        ways = [(left, right, value.op == "-")]
        if value.op == "+":
            if self._lerps(left, right) and not self._is_product(b):
                yield Instruction(value, "lerp", (a, b), weight)
            if right.op != "input" and not self._is_new(value, a):
                ways.append((right, left, False))
        for x, y, minus in ways:
            if x.is_number or y.is_number or (self.uses[y] > 1 and not is_scaled(y)):
                continue
            # List operators take factors as floats only.
            if is_scaled(y) and not self._is_plain(*y.args):
                continue
            for operator, lists, factor in self._terms(y):
                factor = negated(factor) if minus else factor
                word = "alpha" if operator == "add" else "value"
                yield Instruction(value, operator, (x, *lists), f"{word}={factor}")

    def _lerps(self, left: Value, right: Value) -> bool:
        """Whether this is ``a * one + b * two`` with scalars that add up to 1."""
        if not (is_scaled(left) and is_scaled(right)):
            return False
        pair = tuple(text.removeprefix("s.") for _, text in map(factored, (left, right)))
        return pair in self.facts.complements

    def _is_product(self, value: Value) -> bool:
        """Whether addcmul or addcdiv compute it on the way."""
        return value.op in ("*", "/") and self.uses[value] == 1

    def _is_new(self, value: Value, old: Value) -> bool:
        """Whether a value is the new one of a state, to be written over the old one."""
        return old.op == "input" and self.wanted.get(old.args[0]) is value

    def _terms(self, y: Value) -> Iterator[tuple[str, tuple[Value, ...], str]]:
        """``(operator, lists, factor)`` for a term that is added: factor * a * b, factor * a / b, factor * a."""
        inner, factor = factored(y)
        if inner.op in ("*", "/") and (inner is y or self._is_product(inner)):
            a, b = inner.args
            if is_scaled(a) and self._is_plain(*a.args) and factor == "1.0":
                a, factor = factored(a)
            if inner.op == "/":
                b, factor = self._unscaled(b, factor)
            if not a.is_number and not b.is_number:
                yield ("addcmul" if inner.op == "*" else "addcdiv"), (a, b), factor
        if is_scaled(y):
            yield "add", (inner,), factor

    def _unscaled(self, denom: Value, factor: str) -> tuple[Value, str]:
        """``factor / (x * n + m)`` as ``(factor / n) / (x + m / n)``, which saves the multiplication of a list."""
        if denom.op == "+" and self.uses[denom] == 1 and is_scaled(denom.args[0]):
            (x, text), addend = factored(denom.args[0]), denom.args[1]
            n = next(arg for arg in denom.args[0].args if arg.is_number)
            known = n.op == "scalar" and n.args[0] in self.facts.divisors
            if known and addend.is_number and self._is_plain(addend):
                return x + addend / n, f"({factor} / {text})"
        return denom, factor

    def _is_plain(self, *values: Value) -> bool:
        """Whether the numbers among some values, and what they are computed from, are floats."""
        return all(
            self._is_plain(*value.operands)
            and not (value.op == "scalar" and value.args[0] in self.facts.tensors)
            for value in values
            if value.is_number
        )

    def _one_by_one(self, value: Value) -> Instruction:
        """What torch has no list operator for."""
        lists = {arg: None for arg in value.args if not arg.is_number}
        holes = {arg: f"{{{i}}}" for i, arg in enumerate(lists)}
        texts = [number(arg) if arg.is_number else holes[arg] for arg in value.args]
        if value.op == "where":
            text = f"torch.where({', '.join(texts)})"
        elif value.op == "maximum":  # of a number and an element
            text = f"{texts[1]}.clamp(min={texts[0]})"
        else:
            text = f"({texts[0]} {value.op} {texts[1]})"
        return Instruction(value, "", tuple(lists), text, targets=())


def is_scaled(value: Value) -> bool:
    """Whether a value is a number times an element."""
    return value.op == "*" and not value.is_number and any(arg.is_number for arg in value.args)


def factored(value: Value) -> tuple[Value, str]:
    """``(element, factor)``: a scaled value taken apart; any other with the factor 1."""
    if not is_scaled(value):
        return value, "1.0"
    one, two = value.args
    return (two, number(one)) if one.is_number else (one, number(two))


def complement_candidates(values: Sequence[Value]) -> list[tuple[str, str]]:
    """Pairs of scalars that would make a lerp of ``a * one + b * two`` if they added up to 1."""
    pairs: dict[tuple[str, str], None] = {}
    seen: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        waiting += value.operands
        if value.op == "+" and all(map(is_scaled, value.args)):
            names = [text for _, text in map(factored, value.args)]
            if all(name.startswith("s.") for name in names):
                one, two = (name.removeprefix("s.") for name in names)
                pairs[one, two] = None
    return [*pairs]
