"""The command line: what `ingot info` reports, what `ingot demo` writes, help without extras, and wrong usage."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ingot
from ingot import backends, optim
from ingot.cli import COMMANDS, checks, info, main


def ingot_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ingot", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=1800)


EXTRAS = ["rich", "matplotlib", "sklearn", "numpy"]


def python_without(packages: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a Python that cannot import some packages."""
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({packages}))\n"
        f"from ingot.cli import main\nsys.exit(main({list(command)}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_info_json_reports_versions_backends_and_choice() -> None:
    done = ingot_command("info", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["versions"]["ingot"] == ingot.__version__
    assert report["versions"]["torch"] == torch.__version__
    assert report["versions"]["python"] == sys.version.split()[0]
    table = {row["name"]: row for row in report["backends"]}
    assert list(table) == [backend.name for backend in backends.describe()]
    assert table["lists"]["available"] and table["reference"]["available"]
    for row in table.values():
        assert row["devices"]
        assert row["available"] or (row["reason"] and row["hint"]), f"why no {row['name']}?"
    cpu = next(choice for choice in report["chosen"] if choice["device"] == "cpu")
    assert cpu["backend"] == backends.choose_for(torch.device("cpu"))[0]
    assert table[cpu["backend"]]["available"]
    assert cpu["why"]


def test_info_text_says_the_same_and_needs_none_of_the_extras() -> None:
    done = python_without(EXTRAS, "info")
    assert done.returncode == 0, done.stderr
    report = info.collect()
    assert f"ingot {ingot.__version__}, torch {torch.__version__}" in done.stdout
    for row in report["backends"]:
        line = next(line for line in done.stdout.splitlines() if line.split()[:1] == [row["name"]])
        assert line.split()[1] == ("yes" if row["available"] else "no")
        if not row["available"]:
            assert row["reason"] in line and row["hint"] in done.stdout
    cpu = next(choice for choice in report["chosen"] if choice["device"] == "cpu")
    assert f"{cpu['backend']}: {cpu['why']}" in done.stdout


def test_info_tells_the_instruction_set_of_the_native_core() -> None:
    report = info.collect()
    native = next(row for row in report["backends"] if row["name"] == "native")
    if not native["available"]:
        assert report["instructions"] is None
        return
    from ingot import _native

    assert report["instructions"] == _native.isa() != ""
    assert f"cpu, instruction set {_native.isa()}\n" in info.render(report)


def test_info_names_the_backends_it_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = "the first of the list above that runs on"
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: None)
    assert backends.choose_for("cpu") == ("native", f"{first} cpu")
    monkeypatch.setattr(type(backends.TRITON), "unavailable", lambda self: "not here")
    passed = "not native: for cpu tensors only; not triton: not here"
    assert backends.choose_for("mps") == ("lists", f"{passed}; {first} mps")
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")
    (cpu,) = [row for row in info.collect()["chosen"] if row["device"] == "cpu"]
    assert cpu["backend"] == "lists"
    passed = "not native: not today; not triton: not here"
    assert cpu["why"] == f"{passed}; {first} cpu"


def test_info_says_why_a_backend_is_missing_and_how_to_get_it() -> None:
    row = {
        "name": "native",
        "available": False,
        "reason": "not built",
        "hint": "build it",
        "devices": "cpu",
    }
    text = info.render(info.collect() | {"backends": [row]})
    assert "native     no   cpu: not built\n" in text
    assert "to get it: build it\n" in text


def test_a_wrong_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["smelt"])
    assert stop.value.code == 2
    complaint = capsys.readouterr().err
    assert all(name in complaint for name in ["smelt", *COMMANDS])


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ingot {ingot.__version__}\n"


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)
    assert "python -m ingot.selftest" in text and "python -m ingot.npusim" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_needs_none_of_the_extras(command: str) -> None:
    done = python_without(EXTRAS, command, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: ingot {command}")


@pytest.mark.parametrize(
    ("command", "missing", "packages"),
    [
        ("demo", "sklearn", "matplotlib rich scikit-learn"),
        ("demo", "rich", "matplotlib rich scikit-learn"),
        ("bench", "rich", "matplotlib numpy rich"),
        ("bench", "matplotlib", "matplotlib numpy rich"),
    ],
)
def test_a_command_without_its_packages_says_what_to_install(
    command: str, missing: str, packages: str
) -> None:
    done = python_without([missing], command)
    assert done.returncode == 1
    name = checks.PACKAGES[command][missing]
    wanted = f"ingot {command} needs {name}, which is not installed: pip install {packages}\n"
    assert done.stderr.endswith(wanted) and "Traceback" not in done.stderr


def test_the_named_packages_are_those_of_the_extras() -> None:
    tables = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    for command, packages in checks.PACKAGES.items():
        line = re.search(rf"^{command} = \[(.*)\]$", tables, re.MULTILINE)
        assert line is not None
        assert re.findall(r'"([\w-]+)', line[1]) == list(packages.values())
        assert all(name in COMMANDS[command] for name in packages.values())


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_a_backend_that_cannot_run_is_refused(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(backends.NATIVE), "unavailable", lambda self: "not today")
    for name, reason in (("abacus", "'reference'"), ("native", "not today")):
        with pytest.raises(SystemExit) as stop:
            main([command, "--backend", name])
        assert stop.value.code == 2
        complaint = capsys.readouterr().err
        assert f"argument --backend: backend={name!r}" in complaint and reason in complaint


def test_quick_demo_prints_the_table_and_writes_the_picture(tmp_path: Path) -> None:
    done = ingot_command("demo", "--quick", "--output", "made/curves.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row = re.compile(r"^\s*(\S+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)%\s+(\d+)\s*$", re.MULTILINE)
    rows = row.findall(done.stdout)
    fused, others = rows[::2], rows[1::2]
    assert sorted(name for name, *_ in fused) == sorted(optim.__all__)
    assert {backend for _, backend, *_ in fused} == {backends.choose_for(torch.device("cpu"))[0]}
    for name, _, loss, accuracy, _ in rows:
        assert float(loss) < 2.2, f"{name} has not learned: chance is 2.3"
        assert float(accuracy) > 40, f"{name} has not learned: chance is 10 %"
    for (name, _, loss, *_), (other, backend, expected, *_) in zip(fused, others, strict=True):
        same_math = name.replace("NpuFused", "torch.optim.")
        assert (other, backend) in ((same_math, "torch"), (name, "reference"))
        assert float(loss) == pytest.approx(float(expected), abs=2e-3), name
    picture = (tmp_path / "made" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width >= 1000 and height >= 500
