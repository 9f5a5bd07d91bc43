"""The command line: what `ingot info` reports, what `ingot demo` writes, and wrong usage."""

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


def ingot_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ingot", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)


def test_info_json_reports_versions_backends_and_choice() -> None:
    done = ingot_command("info", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["versions"]["ingot"] == ingot.__version__
    assert report["versions"]["torch"] == torch.__version__
    assert report["versions"]["python"] == sys.version.split()[0]
    table = {row["name"]: row for row in report["backends"]}
    assert list(table) == [backend.name for backend in backends.describe()]
    assert table["flat"]["available"] and table["reference"]["available"]
    for row in table.values():
        assert row["devices"]
        assert row["available"] or (row["reason"] and row["hint"]), f"why no {row['name']}?"
    cpu = next(choice for choice in report["chosen"] if choice["device"] == "cpu")
    assert cpu["backend"] == backends.choose_for(torch.device("cpu"))[0]
    assert table[cpu["backend"]]["available"]
    assert cpu["why"]


def test_info_text_says_the_same_as_json() -> None:
    text = ingot_command("info").stdout
    report = json.loads(ingot_command("info", "--json").stdout)
    assert f"ingot {ingot.__version__}, torch {torch.__version__}" in text
    for row in report["backends"]:
        line = next(line for line in text.splitlines() if line.split()[:1] == [row["name"]])
        assert line.split()[1] == ("yes" if row["available"] else "no")
        if not row["available"]:
            assert row["reason"] in line and row["hint"] in text
    cpu = next(choice for choice in report["chosen"] if choice["device"] == "cpu")
    assert f"{cpu['backend']}: {cpu['why']}" in text


@pytest.mark.parametrize("arguments", [["smelt"], []], ids=["unknown", "missing"])
def test_a_wrong_command_lists_the_right_ones(arguments: list[str]) -> None:
    done = ingot_command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    help_text = ingot_command("--help").stdout
    for name in ("info", "demo", "bench"):
        assert name in (done.stderr if arguments else help_text)


def test_info_needs_none_of_the_extras() -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'matplotlib', 'sklearn', 'numpy'): sys.modules[name] = None\n"
        "from ingot.cli import main\n"
        "sys.exit(main(['info']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_demo_without_its_extra_says_what_to_install() -> None:
    code = "import sys\nsys.modules['sklearn'] = None\nfrom ingot.cli import main\nmain(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'ingot[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_refuses_an_unknown_backend() -> None:
    done = ingot_command("demo", "--backend", "abacus")
    assert done.returncode == 2
    assert "abacus" in done.stderr and "reference" in done.stderr


def test_quick_demo_prints_the_table_and_writes_the_picture(tmp_path: Path) -> None:
    done = ingot_command("demo", "--quick", "--output", "made/curves.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row = re.compile(r"^\s*(\S+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)%\s+(\d+)\s*$", re.MULTILINE)
    rows = {name: values for name, *values in row.findall(done.stdout)}
    assert set(rows) == {*optim.__all__, "torch.optim.AdamW", "torch.optim.SGD"}
    chosen = backends.choose_for(torch.device("cpu"))[0]
    for name, (backend, loss, accuracy, _) in rows.items():
        assert backend == ("torch" if name.startswith("torch.") else chosen)
        assert float(loss) < 2.2, f"{name} has not learned: chance is 2.3"
        assert float(accuracy) > 40, f"{name} has not learned: chance is 10 %"
    for name in ("AdamW", "SGD"):
        assert float(rows[f"NpuFused{name}"][1]) == pytest.approx(
            float(rows[f"torch.optim.{name}"][1]), abs=2e-3
        )
    picture = (tmp_path / "made" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width >= 1000 and height >= 500
