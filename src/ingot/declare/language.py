"""The language of declared math: what a body may contain, and its translation into the statements of a target."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingot.declare.targets import Cpp, Target, bare

WORDS = {"sqrt": 1, "absolute": 1, "maximum": 2, "where": 3}  # and their numbers of arguments
SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
COMPARISONS = {ast.Lt: "<", ast.Gt: ">", ast.Eq: "=="}


class Refused(Exception):
    """Something outside the language, with the file and line where it stands."""


def refuse(path: Path, node: ast.AST, why: str) -> Refused:
    """A refusal that points at ``node``."""
    line = getattr(node, "lineno", 1)
    first, *more = ast.unparse(node).splitlines()
    return Refused(f"{path}:{line}: `{first}{' ...' if more else ''}`: {why}")


def always_returns(body: Sequence[ast.stmt]) -> bool:
    """Whether a body returns whatever the flags are."""
    match body:
        case [*_, ast.Return()]:
            return True
        case [*_, ast.If(body=then, orelse=other)]:
            return always_returns(then) and always_returns(other)
    return False


@dataclass
class Body:
    """The translation of one function with its flags decided.

    Attributes:
        path: the file the function stands in, for refusals.
        flags: the keyword-only arguments and their values.
        records: the arguments with fields (``s``, ``sums``, ``row``, ``total``) and the fields they have.
        names: the names that may be read; assignments add to them.
        absent: states the function takes but this variant lacks.
        element: whether this is the math of one element, computed in float32. There what needs scalars
            only is refused: ``1 - s.beta1`` would be rounded twice.
        target: the language it is translated into.
    """

    path: Path
    flags: Mapping[str, bool]
    records: Mapping[str, Sequence[str]]
    names: set[str]
    absent: frozenset[str] = frozenset()
    element: bool = True
    target: Target = field(default_factory=Cpp)
    conditions: set[str] = field(default_factory=set)  # names that hold a comparison
    scalars: set[str] = field(default_factory=set)  # names that hold a scalar now
    assigned: set[str] = field(default_factory=set)  # names the function has given a value
    fields_read: set[tuple[str, str]] = field(default_factory=set)
    names_read: set[str] = field(default_factory=set)

    def expression(self, node: ast.expr) -> str:
        """The text of one expression."""
        match node:
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Attribute(value=ast.Name(id=record), attr=name) if record in self.records:
                if name not in self.records[record]:
                    raise refuse(self.path, node, f"`{record}` has no field `{name}`")
                self.fields_read.add((record, name))
                return self.target.field(record, name)
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self.target.constant(float(value))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self.expression(operand)})"  # two signs in a row: a decrement
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
                self._refuse_scalars(node)
                return self._binary(left, SIGNS[type(op)], right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                self._refuse_scalars(node)
                return self._binary(left, COMPARISONS[type(op)], right)
            case ast.IfExp(test=test, body=then, orelse=other):
                return self.expression(then if self._decided(test) else other)
            case ast.Call(func=ast.Name(id=word), args=arguments, keywords=[]) if word in WORDS:
                return self._call(node, word, arguments)
        raise refuse(self.path, node, "outside the language of declared math")

    def function(self, node: ast.FunctionDef, results: Sequence[str | None]) -> list[str]:
        """The statements of a function; its ``return`` assigns to ``results`` (None: not wanted)."""
        lines: list[str] = []
        if not self._block(node.body, results, lines):
            raise refuse(self.path, node.body[-1], "a function must end in a return")
        return lines

    def _block(
        self, body: Sequence[ast.stmt], results: Sequence[str | None], lines: list[str]
    ) -> bool:
        """Add the statements of a block to ``lines``; whether it returns, with the flags as they are."""
        for place in range(1, len(body)):
            if always_returns(body[:place]):
                raise refuse(self.path, body[place], "stands after a return")
        for node in body:
            match node:
                case ast.Expr(value=ast.Constant(value=str())):
                    continue  # the docstring
                case ast.If(test=test, body=then, orelse=other):
                    if self._block(then if self._decided(test) else other, results, lines):
                        return True
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    lines.append(self._assignment(node, name, value))
                case ast.Return(value=value) if value is not None:
                    lines += self._returned(node, value, results)
                    return True
                case _:
                    raise refuse(self.path, node, "outside the language of declared math")
        return False

    def _assignment(self, node: ast.Assign, name: str, value: ast.expr) -> str:
        text = bare(self.expression(value))
        condition = isinstance(value, ast.Compare)
        if name in self.names and condition != (name in self.conditions):
            raise refuse(
                self.path, node, f"`{name}` is a number in one place and a condition in another"
            )
        if name in self.names:
            self.names_read.add(name)  # an operand that is only written needs its variable as well
        new = name not in self.names
        self.names.add(name)
        self.assigned.add(name)
        (self.scalars.add if self._is_scalar(value) else self.scalars.discard)(name)
        if condition:
            self.conditions.add(name)
        local = self.target.local(name)
        return self.target.assignment(local, text, new=new, condition=condition)

    def _returned(
        self, node: ast.Return, value: ast.expr, results: Sequence[str | None]
    ) -> Iterator[str]:
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(values) != len(results):
            raise refuse(self.path, node, f"expected {len(results)} result(s)")
        for result, one in zip(results, values, strict=True):
            if result is not None:
                text = bare(self.expression(one))
                if text != result:  # a state that is returned as it was assigned
                    yield self.target.assignment(result, text, new=False, condition=False)

    def _binary(self, left: ast.expr, sign: str, right: ast.expr) -> str:
        return self.target.binary(self.expression(left), sign, self.expression(right))

    def _name(self, node: ast.expr, name: str) -> str:
        if name in self.absent:
            raise refuse(self.path, node, "this variant has no such state; test its flag first")
        if name not in self.names:
            raise refuse(self.path, node, "unknown name")
        self.names_read.add(name)
        return self.target.local(name) if name in self.assigned else name

    def _call(self, node: ast.expr, word: str, arguments: Sequence[ast.expr]) -> str:
        if len(arguments) != WORDS[word]:
            raise refuse(self.path, node, f"{word} takes {WORDS[word]} argument(s)")
        if word == "where" and not self._is_condition(arguments[0]):
            raise refuse(self.path, node, "the first argument of where must be a comparison")
        self._refuse_scalars(node)
        return self.target.call(word, [self.expression(argument) for argument in arguments])

    def _decided(self, test: ast.expr) -> bool:
        match test:
            case ast.Name(id=flag) if flag in self.flags:
                return self.flags[flag]
            case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=flag)) if flag in self.flags:
                return not self.flags[flag]
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._decided(part) for part in parts)
        raise refuse(self.path, test, "only keyword-only flags can be tested")

    def _is_condition(self, node: ast.expr) -> bool:
        named = isinstance(node, ast.Name) and node.id in self.conditions
        return named or isinstance(node, ast.Compare)

    def _refuse_scalars(self, node: ast.expr) -> None:
        if self.element and self._is_scalar(node):
            raise refuse(self.path, node, "scalars alone; prepare it in scalars(), in double")

    def _is_scalar(self, node: ast.expr) -> bool:
        """Whether an expression holds no element, only fields of ``s`` and constants."""
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return name in self.scalars
            case ast.Attribute(value=ast.Name(id=record)):
                return record in self.records
            case ast.IfExp(test=test, body=then, orelse=other):
                return self._is_scalar(then if self._decided(test) else other)
            case ast.UnaryOp(operand=operand):
                parts = [operand]
            case ast.BinOp(left=left, right=right):
                parts = [left, right]
            case ast.Compare(left=left, comparators=others):
                parts = [left, *others]
            case ast.Call(args=parts):
                pass
            case _:
                return False
        return all(self._is_scalar(part) for part in parts)
