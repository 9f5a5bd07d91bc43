"""Which combinations of parameters `make test` runs; `make test-every` runs them all.

A test over optimizers, options, backends, types and layouts has hundreds of combinations, and a defect almost always
shows with two of them. So of each test only so many are run that every two values of different parameters
meet, and that every further set of options of an optimizer (after its first one) is there once. Which ones
is decided by a checksum of their names: the same ones everywhere, and spread over the backends.
"""

import re
from collections import defaultdict
from collections.abc import Hashable
from itertools import combinations
from typing import Any, NamedTuple
from zlib import crc32

import pytest

FEW = 20  # a test with no more combinations than this runs them all
SETS_OF_OPTIONS = {"options": "case", "given": "info"}  # which parameter says whose they are


class Value(NamedTuple):
    """What one `parametrize` sets; `owner` tells whose set of options it is, if it is one."""

    names: tuple[str, ...]
    values: tuple[Hashable, ...]
    owner: Hashable = None


def identity(value: Any) -> Hashable:
    """What tells this value from the others of its parameter."""
    return value if isinstance(value, str | int | bool) else id(value)


def values_of(item: pytest.Function) -> list[Value]:
    """What a combination consists of."""
    params: dict[str, Any] = item.callspec.params
    marks = item.iter_markers("parametrize")
    together = [tuple(re.findall(r"\w+", str(mark.args[0]))) for mark in marks]
    named = {name for names in together for name in names}
    found = []
    for names in [*together, *((name,) for name in params if name not in named)]:
        owners = [SETS_OF_OPTIONS[name] for name in names if name in SETS_OF_OPTIONS]
        owner = identity(params[owners[0]]) if owners and owners[0] in params else None
        found.append(Value(names, tuple(identity(params[name]) for name in names), owner))
    return found


def chosen_of(combinations_of: dict[pytest.Item, list[Value]]) -> set[pytest.Item]:
    """The combinations of one test to run."""
    first: dict[Hashable, Value] = {}
    for values in combinations_of.values():
        for value in values:
            if value.owner is not None:
                first.setdefault(value.owner, value)
    kept, shown = set(), set()
    for item in sorted(combinations_of, key=lambda item: crc32(item.nodeid.encode())):
        values = combinations_of[item]
        meeting = [v for v in values if v.owner is None or first[v.owner] == v]
        shows: set[Hashable] = {*values, *combinations(meeting, 2)}
        if not shows <= shown:
            shown |= shows
            kept.add(item)
    return kept


def chosen(items: list[pytest.Item]) -> set[pytest.Item]:
    """The combinations to run."""
    kept: set[pytest.Item] = set()
    tests: dict[str, dict[pytest.Item, list[Value]]] = defaultdict(dict)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]][item] = values_of(item)
        else:
            kept.add(item)
    for combinations_of in tests.values():
        few = len(combinations_of) <= FEW
        kept.update(combinations_of if few else chosen_of(combinations_of))
    return kept
