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
    (re.compile(r":(?:class|func|meth|mod):`~?(\w+\.[\w.]+)`"), r"[`\1`][\1]"),
    (re.compile(r"\bdocs/(\w+)\.md\b"), r"[docs/\1.md](../docs/\1.md)"),
    (
        re.compile(r"``help\(ingot\.optimizer\.FusedOptimizer\)``\s+after\s+``import ingot``"),
        "[What all optimizers share](shared.md)",
    ),
    # The reference itself says the default of every parameter; what it means is kept.
    (re.compile(r"\s\(default (?:[^:()]|\([^()]*\))*\)"), ""),
    (re.compile(r"\(default ([^:()]+): "), r"(\1: "),
]
# A method of the same class, which is named without it.
SIBLING = re.compile(r":meth:`(\w+)`")
# Two columns between lines of "=", as reStructuredText has them; a row goes on where its first column is empty.
TABLE = re.compile(r"^(=+) =+\n(.*?)^=+ =+$", re.MULTILINE | re.DOTALL)


def markdown_table(found: re.Match[str]) -> str:
    """A table of reStructuredText as one of Markdown, whose first row is its heading."""
    width = len(found[1]) + 1
    rows: list[list[str]] = []
    for line in found[2].splitlines():
        first, second = line[:width].strip(), line[width:].strip()
        if first:
            rows.append([f"`{first}`", second])
        else:
            rows[-1][1] += f" {second}"
    return "\n".join(
        f"| {' | '.join(row)} |" for row in [["name", "meaning"], ["---", "---"], *rows]
    )


class TerminalDocstrings(Extension):
    """Applies the rules to every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for every object with its docstring in place."""
        if obj.docstring is None:
            return
        text = TABLE.sub(markdown_table, obj.docstring.value)
        if obj.parent is not None:
            text = SIBLING.sub(rf"[`\1`][{obj.parent.path}.\1]", text)
        for pattern, replacement in RULES:
            text = pattern.sub(replacement, text)
        obj.docstring.value = text
