"""What the generator of C++ refuses, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from codegen_template import (
    ADVANCE_LINE,
    DIRECTION_LINE,
    GOOD_ADVANCE,
    GOOD_DIRECTION,
    TEMPLATE,
    generate,
    header,
)

REFUSED_DIRECTIONS = {
    "return buffer.sqrt()": "outside the language",
    "return buffer ** 2": "outside the language",
    "return exp(buffer)": "outside the language",
    "return sqrt(buffer, grad)": "sqrt takes 1 argument",
    "return buffer * s.gamma": "`s` has no field `gamma`",
    "return buffer * (1 - s.beta)": "scalars alone",
    "return buffer * (s.rate * s.beta)": "scalars alone",
    "x = s.beta; y = 1 - x; return y * buffer": "`1 - x`: scalars alone",
    "return buffer + sqrt(s.beta) * s.rate": "scalars alone",
    "return buffer * sqrt(s.beta)": "`sqrt(s.beta)`: scalars alone",
    "return buffer * ((s.beta if nesterov else s.rate) - 1)": "scalars alone",
    "return where(s.beta > s.rate, buffer, grad)": "`s.beta > s.rate`: scalars alone",
    "return velocity": "unknown name",
    "return where(buffer, grad, param)": "must be a comparison",
    "return where(buffer >= grad, grad, param)": "outside the language",
    "return grad if buffer > 0.0 else param": "only keyword-only flags can be tested",
    "return buffer, grad": "expected 1 result",
    "buffer += grad": "outside the language",
    "for _ in range(2): pass": "outside the language",
    "import math": "outside the language",
    "return buffer; return grad": "`return grad`: stands after a return",
    "update = buffer": "must end in a return",
}


@pytest.mark.parametrize("line", REFUSED_DIRECTIONS)
def test_refused_with_file_and_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(generate.Refused) as refused:
        header(tmp_path, GOOD_ADVANCE, line)
    assert str(refused.value).startswith(f"{tmp_path / 'demo.py'}:{DIRECTION_LINE}: ")
    assert REFUSED_DIRECTIONS[line] in str(refused.value)


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        ("if nesterov:\n        return grad\n    update = buffer", 2, "must end in a return"),
        ("if nesterov:\n        update = buffer", 0, "must end in a return"),
        ("if nesterov:\n        return grad\n        buffer = grad\n    return buffer", 2, "after"),
        (
            "if nesterov:\n        return grad\n    else:\n        return buffer\n    return param",
            4,
            "stands after a return",
        ),
    ],
)
def test_returns_that_do_not_fit(tmp_path: Path, body: str, line: int, why: str) -> None:
    """A variant without a return, and statements that no variant reaches."""
    with pytest.raises(generate.Refused, match=rf"demo\.py:{DIRECTION_LINE + line}: .*{why}"):
        header(tmp_path, GOOD_ADVANCE, body)


def test_number_of_results_of_advance(tmp_path: Path) -> None:
    with pytest.raises(generate.Refused, match=rf"demo\.py:{ADVANCE_LINE}: .*expected 1 result"):
        header(tmp_path, "return buffer, grad", GOOD_DIRECTION)


def test_state_that_a_variant_lacks(tmp_path: Path) -> None:
    """Reading a state without testing the flag that switches it on would read nothing."""
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(advance=GOOD_ADVANCE, direction=GOOD_DIRECTION, flag="nesterov")
    path.write_text(text.replace('{"buffer": State()}', '{"buffer": State("nesterov")}'))
    with pytest.raises(generate.Refused, match="this variant has no such state"):
        generate.header([path])


def test_order_of_sums(tmp_path: Path) -> None:
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(advance=GOOD_ADVANCE, direction=GOOD_DIRECTION, flag="nesterov")
    path.write_text(text.replace("advance, direction)", 'advance, direction, sums=("uu", "pp"))'))
    with pytest.raises(generate.Refused, match="in this order"):
        generate.header([path])


@pytest.mark.parametrize("left", ["keep: float", "rate: float"])
def test_keep_and_rate_are_scalars(tmp_path: Path, left: str) -> None:
    """Without ``finish`` the last line of every optimizer takes them from there, wherever they stand."""
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(advance=GOOD_ADVANCE, direction=GOOD_DIRECTION, flag="nesterov")
    both = "keep: float\n    rate: float\n    beta: float"
    path.write_text(text.replace(both, f"beta: float\n    {left}"))
    with pytest.raises(generate.Refused, match=r"demo\.py:4: .*keep and rate must be among them"):
        generate.header([path])
    path.write_text(text.replace(both, "beta: float\n    rate: float\n    keep: float"))
    assert "F beta, rate, keep;" in generate.header([path])
