"""`ingot memory`: its numbers are those of real optimizers, and wrong arguments are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import Case, each_case, each_setting
from cases.declare import Options
from ingot.cli import main, memory
from ingot.cli.memory import Plan, account
from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params

SHAPES = [(70, 65), (128, 33), (5,), (4, 3)]
PRECISIONS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.float64, {}),
    (torch.bfloat16, {"master_weights": True}),
    (torch.bfloat16, {"state_dtype": "param"}),
    (torch.float32, {"state_dtype": torch.float16}),
    (torch.float16, {"state_dtype": "8bit", "master_weights": True}),
    (torch.float32, {"state_dtype": "8bit"}),
]


def bytes_of(optimizer: FusedOptimizer) -> tuple[int, int]:
    """The bytes of the states and of the master copies that a real optimizer has."""
    states = masters = 0
    for slots in optimizer.state.values():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                masters += value.nbytes if name == "master_param" else 0
                states += 0 if name == "master_param" else value.nbytes
    return states, masters


def as_dict(rows: list[memory.Row]) -> dict[str, tuple[int, int]]:
    return {row.name: (row.device, row.host) for row in rows}


@each_setting
def test_states_of_every_setting(case: Case, options: Options) -> None:
    params = make_params(SHAPES)
    optimizer = case.make(params, **options)
    give_grads(params, 0)
    before = memory.states_of(optimizer, [param.to("meta") for param in params])
    optimizer.step()
    assert bytes_of(optimizer) == before
    assert optimizer.state_bytes() == sum(before)


@each_case
@pytest.mark.parametrize(("dtype", "more"), PRECISIONS)
def test_states_of_every_precision(case: Case, dtype: torch.dtype, more: dict[str, Any]) -> None:
    params = make_params(SHAPES, dtype)
    optimizer = case.make(params, **more)
    give_grads(params, 0)
    rows = as_dict(account(optimizer, Plan()))
    optimizer.step()
    states, masters = bytes_of(optimizer)
    weights = sum(param.nbytes for param in params)
    assert rows.pop("parameters") == rows.pop("gradients") == (weights, 0)
    assert rows.pop("states", (0, 0)) == (states, 0)
    assert rows.pop("master weights", (0, 0)) == (masters, 0)
    assert not rows


def test_places() -> None:
    from ingot.optim import NpuFusedAdamW

    params = make_params([(1000,)], torch.bfloat16)
    optimizer = NpuFusedAdamW(params, master_weights=True)
    weights, states, masters = 2000, 8000, 4000
    plain = {"parameters": (weights, 0), "gradients": (weights, 0)}
    kept = {"states": (states, 0), "master weights": (masters, 0)}
    on_host = {"states": (0, states), "master weights": (0, masters)}
    assert as_dict(account(optimizer, Plan())) == {**plain, **kept}
    released = as_dict(account(optimizer, Plan(release=True)))
    assert released == {"parameters": (weights, 0), **kept}
    offloaded = as_dict(account(optimizer, Plan(offload=True)))
    assert offloaded == {**plain, "host copies": (0, 2 * weights), **on_host}
    shared = as_dict(account(optimizer, Plan(shards=8)))
    assert shared == {name: (n // 8, m // 8) for name, (n, m) in {**plain, **kept}.items()}
    policy = as_dict(account(optimizer, Plan(offload=True, shards=8)))
    swapped = {name: (0, n // 8) for name, (n, _) in {**plain, **kept}.items()}
    assert policy == swapped


PAGE = (Path(__file__).parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")


def test_the_table_of_states_in_the_documentation() -> None:
    section = PAGE.split("### The states of each optimizer")[1].split("###")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    assert len(rows.pop(0)) == 3  # the heading
    values = {"amsgrad": True, "momentum": 0.9, "centered": True}
    seen = set()
    for names, *numbers in rows:
        options = {name: value for name, value in values.items() if f"`{name}`" in names}
        for name in names.split(" with ")[0].split(", "):
            seen.add(name)
            for number, dtype in zip(numbers, (None, torch.bfloat16, "8bit"), strict=True):
                chosen = {**options, "state_dtype": dtype}
                optimizer = memory.imagined(name, 1 << 20, torch.float32, chosen)
                states, _ = memory.states_of(optimizer, optimizer.all_params())
                assert states == float(number) * (1 << 20), (name, chosen)
    assert len(seen) == 9


def test_the_command_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    block = PAGE.split("```console\n$ ingot memory ")[1].replace("\\\n", "")
    command, shown = block.split("\n", 1)
    assert run(capsys, *command.split()).strip() == shown.split("```")[0].strip()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["memory", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = run(capsys, "--params", "7e9", "--state-dtype", "8bit", "--offload", "cpu")
    lines = {line[:16].strip(): line[16:].split() for line in text.splitlines()}
    assert lines["parameters"] == ["4", "28", "0", "0"]
    assert lines["states"] == ["0", "0", "2.062", "14.44"]
    assert lines["together"] == ["8", "56", "10.06", "70.44"]
    assert "offloaded" in text
    text = run(capsys, "--params", "1000", "--optimizer", "sgd", "--set", "momentum=0.9")
    assert "states                      4" in text
    assert "states" not in text.splitlines()[3:] and "master" not in text


def test_the_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.png"
    text = run(capsys, "--params", "7e9", "--release", "--shards", "4", "--output", str(path))
    assert str(path) in text and path.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ingot.cli.memory_plot", raising=False)
    with pytest.raises(SystemExit, match=r"ingot memory needs matplotlib.*pip install matplotlib"):
        main(["memory", "--params", "10", "--output", str(tmp_path / "memory.png")])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "--params"),
        ("--params 1.5", "'1.5' is not a whole number"),
        ("--params 0", "'0' is not a whole number"),
        ("--params many", "'many' is not a whole number"),
        ("--params nan", "'nan' is not a whole number"),
        ("--params 5 --optimizer sgd2", "no optimizer named 'sgd2'"),
        ("--params 5 --set momentum", "has no value"),
        ("--params 5 --set lr=fast", "'fast', which is no Python literal"),
        ("--params 5 --set lr=-1", "lr"),
        ("--params 5 --set momentum=0.9", "no option 'momentum'"),
        ("--params 5 --state-dtype int8", "int8"),
        ("--params 5 --state-dtype 8bit --param-dtype float64", "float64"),
        ("--params 5 --offload disk", "disk"),
        ("--params 5 --shards 0", "'0' is not a whole number"),
    ],
)
def test_wrong_arguments(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["memory", *arguments.split()])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err
