"""The declaration of an optimizer that was imported, for the front end: its functions are read where they stand.

``ingot.declare.source`` reads files without importing them. Kernels that are emitted while a program runs start from
a ``Spec``, which may come from a user's own file.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ingot.declare.formula import Formula
from ingot.declare.language import Refused
from ingot.declare.source import Declared, Optimizer
from ingot.declare.spec import Spec, Variant


def formula(variant: Variant, scalars: Sequence[str]) -> Formula:
    """A variant, ready to be translated; raises ``Refused`` if a function cannot be read.

    Args:
        variant: the variant.
        scalars: the names of its scalars.
    """
    return Formula(read(variant.spec, scalars), variant.flags)


def read(spec: Spec, scalars: Sequence[str]) -> Optimizer:
    """What a spec declares, as the front end wants it."""
    return Optimizer(
        name=spec.name,
        states={name: state.flag for name, state in spec.states.items()},
        unsigned=frozenset(name for name, state in spec.states.items() if not state.signed),
        scalars=scalars,
        advance=declared(spec.advance),
        direction=declared(spec.direction),
        finish=None if spec.finish is None else declared(spec.finish),
        score=None if spec.score is None else declared(spec.score),
        sums=spec.sums,
        rows=spec.rows,
        looks_back=spec.looks_back,
        options=frozenset(spec.flags),
    )


def declared(function: Callable[..., Any]) -> Declared:
    """The definition of a function."""
    try:
        lines, first = inspect.getsourcelines(function)
        path = Path(inspect.getsourcefile(function) or "<unknown>")
        (node,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise Refused(f"the source of {function!r} cannot be read ({error})") from None
    ast.increment_lineno(node, first - 1)
    return Declared(path, node)
