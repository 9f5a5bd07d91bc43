"""Declared math as torch's list operators: one Python function per formula, written in place wherever that is right.

    def adamw(param, grad, exp_avg, exp_avg_sq, s):
        torch._foreach_lerp_(exp_avg, grad, s.comp1)
        torch._foreach_mul_(exp_avg_sq, s.beta2)
        ...

Operands are lists of tensors. The states and the parameter are overwritten; the gradient is too if it is the caller's
own copy. What is known about the scalars of a step (which are 1, which two add up to 1) is decided when the function
is written.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ingot.backends.patterns import Instruction, Selection
from ingot.declare.spec import Variant
from ingot.declare.trace import Value, trace


class Purpose(NamedTuple):
    """What a program is for.

    Attributes:
        results: which of the states' names, ``param`` and ``update`` it computes; ``update`` is returned.
        advanced: whether the update comes from the states that this program advances.
        exact: whether every operation is rounded by itself, in the declared order, as the reference backend does.
            If not, lerp, addcmul, addcdiv and add with a factor take the place of two operators each.
        own_grad: whether the gradient may be overwritten.
        ones: the scalars that are 1.
        complements: pairs of scalars that add up to 1.
    """

    results: tuple[str, ...]
    advanced: bool
    exact: bool
    own_grad: bool
    ones: frozenset[str]
    complements: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Program:
    """A function made of list operators.

    Attributes:
        text: its source.
        call: ``(param, grad, *states, s) -> update or None``.
        temporaries: lists of temporary tensors alive at the same time.
    """

    text: str
    call: Callable[..., Any]
    temporaries: int


@cache
def program(variant: Variant, purpose: Purpose) -> Program:
    """The program of a formula; raises ``Untraceable`` if it is outside the language."""
    values = trace(variant, purpose.ones, advanced=purpose.advanced)
    wanted = {name: values[name] for name in purpose.results}
    selection = Selection(wanted, purpose.exact, purpose.complements)
    writer = Writer(variant, wanted, selection, purpose.own_grad)
    text = writer.text()
    name = f"<ingot lists: {variant.name}, {len(linecache.cache)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    return Program(text, scope[variant.name], writer.most_alive)


class Writer:
    """Writes one program: the order of the instructions, and which list each of them overwrites."""

    def __init__(
        self, variant: Variant, wanted: dict[str, Value], selection: Selection, own_grad: bool
    ) -> None:
        self.variant, self.wanted, self.selection = variant, wanted, selection
        self.order = selection.order
        self.lists: dict[Value, str] = {}  # the list that holds a value
        self.writable = {"grad"} if own_grad else set()
        self.made = self.most_alive = 0
        self.left = Counter(arg for each in self.order for arg in each.lists)
        self.left.update(wanted.values())  # results stay until the end
        self.homes = self._homes()

    def _homes(self) -> dict[Value, str]:
        """The values that may be written over a state or the parameter, because they lead to its new value."""
        homes: dict[Value, str] = {}
        for name, result in self.wanted.items():
            value, chain = result, [result]
            while value in self.selection.instructions:
                value = self.selection.instructions[value].lists[0]
                chain.append(value)
            if name != "update" and value.op == "input" and value.args[0] == name:
                homes.update(dict.fromkeys(chain[:-1], name))
        return homes

    def text(self) -> str:
        """The source of the program."""
        names = ["param", "grad", *self.variant.states]
        self.lists.update(self.selection.inputs)
        lines = [line for each in self.order for line in self._instruction(each)]
        lines += self._moves()
        if "update" in self.wanted:
            lines.append(f"return {self.lists[self.wanted['update']]}")
        body = "".join(f"    {line}\n" for line in lines or ["return None"])
        return f"import torch\n\n\ndef {self.variant.name}({', '.join(names)}, s):\n{body}"

    def _instruction(self, each: Instruction) -> Iterable[str]:
        names = [self.lists[value] for value in each.lists]
        for value in each.lists:
            self.left[value] -= 1
        target = next((i for i in each.targets if self._overwrites(each, i)), None)
        if target is not None:
            names[0], names[target] = names[target], names[0]
            self.lists[each.value] = names[0]
            yield each.text(names, in_place=True)
        else:
            self.lists[each.value] = result = self._new()
            yield f"{result} = {each.text(names, in_place=False)}"
        dead = {
            self.lists[value]
            for value in each.lists
            if not self.left[value] and self.lists[value] != self.lists[each.value]
        }
        if gone := sorted(dead & self.writable - {"grad"}):
            self.writable -= {*gone}
            self.made -= len(gone)
            yield f"del {', '.join(gone)}"

    def _overwrites(self, each: Instruction, place: int) -> bool:
        """Whether the result may take the place of an operand: nobody needs it any more."""
        operand = each.lists[place]
        name = self.lists[operand]
        return not self.left[operand] and (
            name in self.writable or self.homes.get(each.value) == name
        )

    def _new(self) -> str:
        self.made += 1
        self.most_alive = max(self.most_alive, self.made)
        taken = self.writable
        name = next(f"t{i}" for i in range(len(taken) + 1) if f"t{i}" not in taken)
        self.writable.add(name)
        return name

    def _moves(self) -> Iterable[str]:
        """Copies of results that could not be computed in their places."""
        moves = {
            name: self.lists[value]
            for name, value in self.wanted.items()
            if name not in ("update", self.lists[value])
        }
        for (
            name,
            source,
        ) in moves.items():  # another's old value, which that one's new value would replace
            if source in moves:
                moves[name] = fresh = self._new()
                yield f"{fresh} = [each.clone() for each in {source}]"
        for name, source in moves.items():
            yield f"torch._foreach_copy_({name}, {source})"


def facts(scalars: Any, pairs: Sequence[tuple[str, str]]) -> tuple[frozenset[str], frozenset[Any]]:
    """Which scalars of a step are 1, and which of some pairs add up to 1 in double precision."""
    values = scalars._asdict()
    ones = frozenset(name for name, value in values.items() if value == 1.0)
    one = frozenset(pair for pair in pairs if abs(values[pair[0]] + values[pair[1]] - 1) <= 2**-52)
    return ones, one
