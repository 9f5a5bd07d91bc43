"""Declared math as a graph: the functions of a spec called with symbols instead of tensors.

The C++ generator reads the source text, because it runs where there is no torch. Here the functions themselves are at
hand: calling them decides their flags, and an optimizer that was declared in a notebook is read like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ingot.declare.spec import Variant

# The words of ingot.declare.words, as torch knows them.
WORDS: Mapping[Any, str] = {
    torch.sqrt: "sqrt",
    torch.abs: "abs",
    torch.maximum: "maximum",
    torch.where: "where",
}
Number = int | float


class Untraceable(Exception):
    """A body that does something else than declared math may do."""


class Value:
    """One value of the graph.

    Equal values of one :class:`Graph` are the same object: what two functions both compute is found once.

    Attributes:
        op: ``input``, ``scalar`` (a field of ``s``), ``constant``, an arithmetic sign or a word.
        args: its operands; of an input or scalar its name, of a constant the number.
    """

    def __init__(self, graph: Graph, op: str, args: tuple[Any, ...]) -> None:
        self.graph, self.op, self.args = graph, op, args

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values it is computed from."""
        return tuple(arg for arg in self.args if isinstance(arg, Value))

    @property
    def is_number(self) -> bool:
        """Whether it is the same for all elements."""
        if not self.operands:
            return self.op in ("scalar", "constant")
        return all(operand.is_number for operand in self.operands)

    def __add__(self, other: Any) -> Value:
        return self.graph.value("+", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.graph.value("+", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.graph.value("-", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.graph.value("-", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.graph.value("*", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.graph.value("*", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.value("/", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.graph.value("/", other, self)

    def __neg__(self) -> Value:
        return self.graph.value("neg", self)

    def __lt__(self, other: Any) -> Value:
        return self.graph.value("<", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.graph.value(">", self, other)

    def __eq__(self, other: object) -> Any:
        return self.graph.value("==", self, other)

    __hash__ = object.__hash__

    def clone(self) -> Value:
        """Itself: nothing changes a value of the graph."""
        return self

    def __bool__(self) -> bool:
        raise Untraceable("a value cannot decide an `if`; only flags can")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Value:
        given = [*args, *(kwargs or {}).values()]
        graph = next(value.graph for value in given if isinstance(value, Value))
        if func is torch.clamp and kwargs is not None and [*kwargs] == ["min"]:
            return graph.value("maximum", *given)
        if func not in WORDS or kwargs:
            raise Untraceable(f"{getattr(func, '__name__', func)} is no word of declared math")
        return graph.value(WORDS[func], *given)


class Graph:
    """The values of one variant; scalars known to be 1 multiply nothing, scalars known to be 0 are not added.

    A product with 0 stays: of an infinite element it is NaN.
    """

    def __init__(
        self, ones: frozenset[str] = frozenset(), zeros: frozenset[str] = frozenset()
    ) -> None:
        self.neutral = {"*": ones, "+": zeros}
        self._known: dict[Any, Value] = {}

    def value(self, op: str, *args: Any) -> Value:
        """The value of an operation; numbers become constants."""
        operands = [arg if isinstance(arg, Value) else self._constant(arg) for arg in args]
        if op in self.neutral:
            for one, other in (operands, reversed(operands)):
                known = one.op == "scalar" and one.args[0] in self.neutral[op]
                if known and not other.is_number:
                    return other
        return self._make(op, *operands)

    def input(self, name: str) -> Value:
        """An operand: param, grad or a state."""
        return self._make("input", name)

    def scalar(self, name: str) -> Value:
        """A field of ``s``."""
        return self._make("scalar", name)

    def _constant(self, number: Any) -> Value:
        if not isinstance(number, Number) or isinstance(number, bool):
            raise Untraceable(f"{number!r} is no number")
        return self._make("constant", float(number))

    def _make(self, op: str, *args: Any) -> Value:
        key = op, *(id(arg) if isinstance(arg, Value) else arg for arg in args)
        return self._known.setdefault(key, Value(self, op, args))


def trace(
    variant: Variant,
    ones: frozenset[str] = frozenset(),
    zeros: frozenset[str] = frozenset(),
    *,
    advanced: bool = True,
) -> dict[str, Value]:
    """The new states by name, ``update``, and for elementwise optimizers ``param``.

    Args:
        variant: the formula.
        ones: the scalars that are 1 in this step.
        zeros: those that are 0.
        advanced: whether the update is computed from the states this advances; if not, from those it is given.
    """
    graph = Graph(ones, zeros)
    scalars = _Scalars(graph.scalar)
    param, grad = graph.input("param"), graph.input("grad")
    states: list[Any] = [graph.input(name) for name in variant.states]
    new: list[Any] = variant.advance(param, grad, states, scalars)  # type: ignore[arg-type]
    seen = new if advanced and not variant.spec.looks_back else states
    update: Any = variant.direction(param, grad, seen, scalars)  # type: ignore[arg-type]
    results = {**dict(zip(variant.states, new, strict=True)), "update": update}
    if not variant.two_pass:
        results["param"] = scalars.keep * param - scalars.rate * update
    for name, value in results.items():
        if not isinstance(value, Value):
            raise Untraceable(f"{name} is {value!r}")
    return results


class _Scalars(SimpleNamespace):
    """``s``: every field it is asked for is a scalar."""

    def __init__(self, scalar: Callable[[str], Value]) -> None:
        super().__init__(_scalar=scalar)

    def __getattr__(self, name: str) -> Value:
        made: Value = self.__dict__["_scalar"](name)
        return made
