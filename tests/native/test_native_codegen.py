"""The generator of C++: the structs and loops it writes, and that the build came from the math of now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from codegen_template import GOOD_ADVANCE, GOOD_DIRECTION, TEMPLATE, generate, header, struct

from ingot.backends import native
from ingot.declare.sums import SUMS


def test_one_struct_per_combination_of_flags(tmp_path: Path) -> None:
    """A flag that is an option doubles the variants; one that is none is always off."""
    text = "return grad if nesterov else buffer"
    both = header(tmp_path, GOOD_ADVANCE, text)
    assert "X(demo) X(demo_nesterov)" in both
    assert "state[0] = (s.beta * buffer) + grad;" in both
    assert "update_result = buffer;" in both and "update_result = grad;" in both
    one = header(tmp_path, GOOD_ADVANCE, text.replace("nesterov", "other"), flag="other")
    assert "X(demo)" in one and "update_result = grad;" not in one


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
