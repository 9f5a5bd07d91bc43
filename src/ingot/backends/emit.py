"""Declared math as torch's list operators: one Python function per formula, written in place wherever that is right.

    def adamw(param, grad, exp_avg, exp_avg_sq, s):
        torch._foreach_lerp_(exp_avg, grad, s.comp1)
        torch._foreach_mul_(exp_avg_sq, s.beta2)
        ...

Operands are lists of tensors. The states and the parameter are overwritten; the gradient is too if it is the caller's
own copy. An update is written to a list of its own. What is known about the scalars of a step (which are 1, which two
add up to 1) is decided when the function is written.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, NamedTuple

from torch import Tensor

from ingot.backends.patterns import Instruction, Selection
from ingot.declare.spec import Variant
from ingot.declare.trace import Value, trace


class Facts(NamedTuple):
    """What is known about the scalars of a step, by name.

    Attributes:
        ones: those that are 1.
        zeros: those that are 0.
        divisors: those that anything can be divided by without overflow: finite and more than 1.
        tensors: those that are 0-dim tensors, because they are made of a learning rate on an accelerator; nothing
            else is known of them.
        complements: pairs that add up to 1.
    """

    ones: frozenset[str]
    zeros: frozenset[str]
    divisors: frozenset[str]
    tensors: frozenset[str]
    complements: frozenset[tuple[str, str]]


class Purpose(NamedTuple):
    """What a program is for.

    Attributes:
        results: which of the states' names, ``param`` and ``update`` it computes.
        advanced: whether the update comes from the states that this program advances.
        exact: whether every operation is rounded by itself, in the declared order, as the reference backend does.
            If not, lerp, addcmul, addcdiv and add with a factor take the place of two operators each.
        own_grad: whether the gradient may be overwritten.
        facts: what is known about the scalars.
    """

    results: tuple[str, ...]
    advanced: bool
    exact: bool
    own_grad: bool
    facts: Facts


@dataclass(frozen=True)
class Program:
    """A function made of list operators.

    Attributes:
        text: its source.
        call: ``(param, grad, *states, s)``; ``(param, grad, *states, update, s)`` if it computes an update.
        temporaries: lists of temporary tensors alive at the same time.
        adds: whether it adds to the list ``update``, which must be zero then.
    """

    text: str
    call: Callable[..., None]
    temporaries: int
    adds: bool


@cache
def program(variant: Variant, purpose: Purpose) -> Program:
    """The program of a formula; raises ``Untraceable`` if it is outside the language."""
    ones, zeros, *_ = purpose.facts
    values = trace(variant, ones, zeros, advanced=purpose.advanced)
    wanted = {name: values[name] for name in purpose.results}
    if "update" in wanted and not purpose.exact:
        wanted["update"] = added_to_zeros(wanted["update"])
    selection = Selection(wanted, purpose.exact, purpose.facts)
    writer = Writer(variant, wanted, selection, purpose.own_grad)
    text = writer.text()
    name = f"<ingot lists: {variant.name}, {len(linecache.cache)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    adds = "update" in selection.inputs.values()
    return Program(text, scope[variant.name], writer.most_alive, adds)


def added_to_zeros(update: Value) -> Value:
    """An update whose first term is a product or a quotient, with zeros before it.

    Then one addcmul or addcdiv writes that term, with its factor, where the update belongs. Computed elsewhere it
    would be copied.
    """
    if update.op in ("+", "-"):
        first, second = update.args
        return update.graph.value(update.op, added_to_zeros(first), second)
    if update.op in ("*", "/") and not update.is_number:
        return update.graph.input("update") + update
    return update


class Writer:
    """Writes one program: the order of the instructions, and which list each of them overwrites."""

    def __init__(
        self, variant: Variant, wanted: dict[str, Value], selection: Selection, own_grad: bool
    ) -> None:
        self.variant, self.wanted, self.selection = variant, wanted, selection
        self.order = selection.order
        self.lists: dict[Value, str] = {}  # the list that holds a value
        self.writable = {"update"} | ({"grad"} if own_grad else set())
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
            if value.op == "input" and value.args[0] == name:
                homes.update(dict.fromkeys(chain[:-1], name))
        return homes

    def text(self) -> str:
        """The source of the program."""
        names = ["param", "grad", *self.variant.states, *(["update"] * ("update" in self.wanted))]
        self.lists.update(self.selection.inputs)
        lines = [line for each in self.order for line in self._instruction(each)]
        lines += self._moves()
        body = "".join(f"    {line}\n" for line in lines or ["pass"])
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
        if gone := sorted(dead & self.writable - {"grad", "update"}):
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
            if name != self.lists[value]
        }
        for name, source in moves.items():
            # Another's old value, which that one's new value would replace.
            if source in moves:
                moves[name] = fresh = self._new()
                yield f"{fresh} = [each.clone() for each in {source}]"
        for name, source in moves.items():
            yield f"torch._foreach_copy_({name}, {source})"


def facts(scalars: Any, pairs: Sequence[tuple[str, str]]) -> Facts:
    """What is known about the scalars of a step, and which of some pairs add up to 1 in double precision."""
    every = scalars._asdict()
    known = {name: value for name, value in every.items() if not isinstance(value, Tensor)}
    return Facts(
        ones=frozenset(name for name, value in known.items() if value == 1.0),
        zeros=frozenset(name for name, value in known.items() if value == 0.0),
        divisors=frozenset(name for name, value in known.items() if 1.0 < value < inf),
        tensors=frozenset(every.keys() - known.keys()),
        complements=frozenset(
            (one, two)
            for one, two in pairs
            if one in known and two in known and abs(known[one] + known[two] - 1) <= 2**-52
        ),
    )
