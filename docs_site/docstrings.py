"""Turns the docstrings, written for help() in a terminal, into Markdown for the API reference (a griffe extension)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

RULES = [
    (
        re.compile(r"^::\n", re.MULTILINE),
        "",
    ),  # the indented block after it is code in Markdown as well
    (
        re.compile(r"^Example:$", re.MULTILINE),
        "Examples:",
    ),  # the heading under which griffe looks for them
    (re.compile(r":(?:class|func|meth|mod):`~?([\w.]+)`"), r"[`\1`][\1]"),
    (re.compile(r"\bdocs/(\w+)\.md\b"), r"[docs/\1.md](../docs/\1.md)"),
]


class TerminalDocstrings(Extension):
    """Applies the rules to every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for every object with its docstring in place."""
        if obj.docstring is None:
            return
        text = obj.docstring.value
        for pattern, replacement in RULES:
            text = pattern.sub(replacement, text)
        obj.docstring.value = text
