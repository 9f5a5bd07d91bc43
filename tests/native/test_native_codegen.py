"""The generator of C++: what it refuses, with file and line, and that the build came from the math of now."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ingot.backends import native
from ingot.declare.sums import SUMS

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


def test_one_struct_per_combination_of_flags(tmp_path: Path) -> None:
    """A flag that is an option doubles the variants; one that is none is always off."""
    text = "return grad if nesterov else buffer"
    both = header(tmp_path, GOOD_ADVANCE, text)
    assert "X(demo) X(demo_nesterov)" in both
    assert "state[0] = (s.beta * buffer) + grad;" in both
    assert "update_result = buffer;" in both and "update_result = grad;" in both
    one = header(tmp_path, GOOD_ADVANCE, text.replace("nesterov", "other"), flag="other")
    assert "X(demo)" in one and "update_result = grad;" not in one


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


def struct(header: str, name: str) -> str:
    """The text of one variant."""
    return header.partition(f"struct {name} {{")[2].partition("\n};")[0]


def test_early_return(tmp_path: Path) -> None:
    """A branch that returns ends the function where its flag is on; what follows is for the other variants."""
    text = header(tmp_path, GOOD_ADVANCE, "if nesterov: return grad\n    return buffer")
    assert re.findall("update_result = (.*);", struct(text, "demo")) == ["buffer"]
    assert re.findall("update_result = (.*);", struct(text, "demo_nesterov")) == ["grad"]


def test_scalars_and_elements(tmp_path: Path) -> None:
    """A name is a scalar as long as it holds one; choosing one and changing its sign loses no digit."""
    body = "x = s.beta if nesterov else -s.rate; x = x * grad; y = where(grad > 0.0, 0.0, 1.0); return x * y - 1"
    assert "x = s.beta;" in header(tmp_path, GOOD_ADVANCE, body)


def test_signs_stay_apart(tmp_path: Path) -> None:
    """In C++ `--grad` would be a decrement, `buffer - -grad` a matter of spaces."""
    text = header(tmp_path, GOOD_ADVANCE, "return --grad if nesterov else buffer - -grad")
    assert "update_result = buffer - (-grad);" in struct(text, "demo")
    assert "update_result = -(-grad);" in struct(text, "demo_nesterov")


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


def test_gradients_are_read_where_the_update_needs_them() -> None:
    """The second half of a step with 16-bit states leaves the gradient alone where it can."""
    text = generate.header([generate.OPTIMIZERS / "sgd.py"])
    names = re.findall("struct (sgd.*) {", text)
    reading = [name for name in names if "kDirectionReadsGrad = true" in struct(text, name)]
    assert set(names) - set(reading) == {"sgd_momentum", "sgd_momentum_weight_decay"}


def test_variants_share_the_loops_they_have_in_common(tmp_path: Path) -> None:
    """Every variant names the first one with the same element math, itself if it is the first."""
    text = generate.header([*generate.OPTIMIZERS.glob("*.py")])
    names = re.findall("struct (\\w+) {\n", text)
    shared = {name: re.findall("using Elements = (.*);", struct(text, name)) for name in names}
    others = {name: first for name, first in shared.items() if first != [name]}
    for name in [name for name in others if name.startswith("rmsprop_tf")]:
        alike = name.replace("_tf", "")
        if "decoupled_decay" in name:
            alike = alike.replace("_decoupled_decay", "").replace("_weight_decay", "")
        assert others.pop(name) == [alike], "they differ in scalars alone"
    assert others == {
        "lamb_adam": ["lamb"],
        "lamb_adam_weight_decay": ["lamb_weight_decay"],
        "sgd_nesterov": ["sgd"],
        "sgd_nesterov_weight_decay": ["sgd_weight_decay"],
    }
    for direction in ("return grad if nesterov else buffer", "return buffer"):
        text = header(tmp_path, GOOD_ADVANCE, direction)
        same = "demo" if direction == "return buffer" else "demo_nesterov"
        assert f"using Elements = {same};" in struct(text, "demo_nesterov")


def test_the_core_was_built_from_the_math_of_now() -> None:
    reason = native.NATIVE.unavailable()
    if reason:
        pytest.skip(reason)
    now = {w.name: w.digest for w in generate.writers([*generate.OPTIMIZERS.glob("*.py")])}
    built = {name: digest for name, (_, digest) in native.core.variants().items()}
    stale = sorted(name for name in {*now, *built} if now.get(name) != built.get(name))
    assert not stale, f"the declared math has changed: rebuild the core ({', '.join(stale)})"


def test_digests_tell_math_from_words(tmp_path: Path) -> None:
    """Another formula or other scalars: another digest. Comments and lines do not count."""
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(advance=GOOD_ADVANCE, direction=GOOD_DIRECTION, flag="nesterov")

    def digests(old: str = "", new: str = "") -> list[str]:
        assert old in text
        path.write_text(text.replace(old, new) if old else text)
        return [writer.digest for writer in generate.writers([path])]

    first = digests()
    assert digests("return buffer", '"""Words."""\n\n    return buffer  # why') == first
    for old, new in {
        "return buffer": "return buffer + grad",
        "+ grad,)": "- grad,)",
        "beta: float": "beta: float\n    gamma: float",
    }.items():
        assert not {*digests(old, new)} & {*first}


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


def test_flags_together(tmp_path: Path) -> None:
    """Several flags in one test."""
    text = TEMPLATE.format(
        advance=GOOD_ADVANCE,
        direction="return grad if momentum and not nesterov else buffer",
        flag="momentum, nesterov",
    )
    path = tmp_path / "demo.py"
    path.write_text(text.replace("FLAG}", 'FLAG, "momentum": FLAG}'))
    made = generate.header([path])
    for name in ("demo", "demo_momentum", "demo_nesterov", "demo_momentum_nesterov"):
        expected = "grad" if name == "demo_momentum" else "buffer"
        assert re.findall("update_result = (.*);", struct(made, name)) == [expected]


def test_states_are_records(tmp_path: Path) -> None:
    """The flag may be given by place or by name; anything but a State is refused."""
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(
        advance="return (grad if nesterov else None,)", direction="return grad", flag="nesterov"
    )
    text = text.replace("buffer, s):", "buffer, s, *, nesterov):")
    for state in ('State("nesterov")', 'State(start=1.0, flag="nesterov", signed=False)'):
        path.write_text(text.replace("State()", state))
        made = generate.header([path])
        assert "kStates = 0;" in struct(made, "demo")
        assert "kStates = 1;" in struct(made, "demo_nesterov")
    path.write_text(text.replace("State()", "None"))
    with pytest.raises(generate.Refused, match=r"expected State"):
        generate.header([path])


def test_looking_back(tmp_path: Path) -> None:
    """The loops are told; a second pass would find the new states only."""
    path = tmp_path / "demo.py"
    text = TEMPLATE.format(advance=GOOD_ADVANCE, direction=GOOD_DIRECTION, flag="nesterov")
    path.write_text(text.replace("direction)", "direction, looks_back=True)"))
    assert generate.header([path]).count("kLooksBack = true") == 2
    path.write_text(text.replace("direction)", "direction, direction, looks_back=True)"))
    with pytest.raises(generate.Refused, match="looks_back and finish exclude each other"):
        generate.header([path])


def test_sums_come_from_the_table() -> None:
    """Names, factors and order of the C++ side are those of ingot.declare.sums."""
    text = re.findall(r"X\((\w+), (\w+), (\w+)\)", generate.sums_header())
    assert {name: (one, two) for name, one, two in text} == SUMS
    assert [name for name, *_ in text] == [*SUMS]
