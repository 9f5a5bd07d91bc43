"""One variant of an optimizer, translated function by function into the language of a target.

Shared by everything that is generated: it decides which names, states, flags and records a declared function may use.
Standard library only: the generator of the native core reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ingot.declare.language import Body, refuse
from ingot.declare.source import Declared, Optimizer
from ingot.declare.targets import Target

FINISHED = ("keep_result", "rate_result")  # what the translation of finish assigns to


class Translated(NamedTuple):
    """Statements, and what they read.

    Attributes:
        lines: the statements.
        states: the states that are arguments of the function, in its order; this variant may lack some.
        names: the operands that are read.
        fields: the fields of records that are read.
    """

    lines: list[str]
    states: list[str]
    names: set[str]
    fields: set[tuple[str, str]]


class Formula:
    """An optimizer with its flags decided."""

    def __init__(self, optimizer: Optimizer, flags: Mapping[str, bool]) -> None:
        self.optimizer = optimizer
        self.flags = flags
        self.name = "_".join([optimizer.name, *(flag for flag, on in flags.items() if on)])
        self.states = [n for n, f in optimizer.states.items() if f is None or flags.get(f, False)]

    def advance(self, target: Target, results: Mapping[str, str]) -> Translated:
        """The new states; ``results`` names what each is assigned to."""
        declared = self.optimizer.advance
        states = self._state_arguments(declared)
        wanted = [results[name] if name in self.states else None for name in states]
        return self._elements(declared, target, wanted)

    def direction(self, target: Target, result: str) -> Translated:
        """The update."""
        return self._elements(self.optimizer.direction, target, [result])

    def score(self, target: Target, result: str) -> Translated:
        """The score of one ``sums``; only for optimizers that have one."""
        declared = self.optimizer.score
        assert declared is not None
        if declared.function.args.kwonlyargs:
            raise refuse(declared.path, declared.function.args, "score takes no flags")
        records = {"sums": self._sum_fields(), "s": self.optimizer.scalars}
        body = Body(declared.path, {}, records, set(), element=False, target=target)
        return self._translated(body, declared, [], [result])

    def finish(self, target: Target) -> Translated:
        """The factors of a row, assigned to ``FINISHED``; only for two-pass optimizers."""
        declared = self.optimizer.finish
        assert declared is not None
        sums = self._sum_fields()
        records = {"row": sums, "total": sums, "s": self.optimizer.scalars}
        names = {"row_scores", "total_score"}
        flags = self._flags(declared)
        body = Body(declared.path, flags, records, names, element=False, target=target)
        return self._translated(body, declared, [], FINISHED)

    def _elements(
        self, declared: Declared, target: Target, results: Sequence[str | None]
    ) -> Translated:
        """The math of one element, which may read the operands this variant has."""
        states = self._state_arguments(declared)
        absent = frozenset(states) - set(self.states)
        names = {"param", "grad", *states} - absent
        records = {"s": self.optimizer.scalars}
        body = Body(declared.path, self._flags(declared), records, names, absent, target=target)
        return self._translated(body, declared, states, results)

    @staticmethod
    def _translated(
        body: Body, declared: Declared, states: list[str], results: Sequence[str | None]
    ) -> Translated:
        lines = body.function(declared.function, results)
        return Translated(lines, states, body.names_read, body.fields_read)

    def _sum_fields(self) -> tuple[str, ...]:
        return (*self.optimizer.sums, "root_n")

    def _flags(self, declared: Declared) -> dict[str, bool]:
        """The flags a function takes; it may test no others."""
        return {a.arg: self.flags[a.arg] for a in declared.function.args.kwonlyargs}

    @staticmethod
    def _state_arguments(declared: Declared) -> list[str]:
        *operands, _ = [argument.arg for argument in declared.function.args.args]
        if operands[:2] != ["param", "grad"]:
            raise refuse(
                declared.path, declared.function.args, "expected param, grad, the states, s"
            )
        return operands[2:]
