"""The generator of C++ and an optimizer with gaps, which the tests of the generator fill."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

CSRC = Path(__file__).parent.parent.parent / "csrc"
if not CSRC.exists():
    pytest.skip("the sources of the core are not here", allow_module_level=True)
sys.path.insert(0, str(CSRC / "generate"))
generate = pytest.importorskip("generate")

TEMPLATE = """\
from ingot.declare.words import sqrt, where


class Scalars(NamedTuple):
    keep: float
    rate: float
    beta: float


def scalars(group, step):
    return Scalars(1.0, 0.1, 0.9)


def advance(param, grad, buffer, s):
    {advance}


def direction(param, grad, buffer, s, *, {flag}):
    {direction}


class Demo:
    spec = Spec("demo", {{"buffer": State()}}, scalars, advance, direction)
    rules = {{"nesterov": FLAG}}
"""
ADVANCE_LINE, DIRECTION_LINE = 15, 19
GOOD_ADVANCE = "return (s.beta * buffer + grad,)"
GOOD_DIRECTION = "return buffer"


def header(tmp_path: Path, advance: str, direction: str, flag: str = "nesterov") -> str:
    path = tmp_path / "demo.py"
    path.write_text(TEMPLATE.format(advance=advance, direction=direction, flag=flag))
    return str(generate.header([path]))


def struct(header: str, name: str) -> str:
    """The text of one variant."""
    return header.partition(f"struct {name} {{")[2].partition("\n};")[0]
