"""What the commands say of files and options they cannot use: a sentence and status 2, no traceback."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ingot.cli import main
from ingot.cli.bench import parse
from ingot.metrics import Metrics, read
from ingot.metrics.sinks import Csv, JsonLines
from metrics_lines import entry, write

MEMORY = ["memory", "--params", "7e9"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line of what a command says that refuses its arguments."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl", entry(1), entry(2))


@pytest.mark.parametrize("command", ["memory", "watch"])
def test_the_folder_of_a_picture_is_made(command: str, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "folder" / "a.svg"
    begin = MEMORY if command == "memory" else ["watch", str(run)]
    assert main([*begin, "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize("command", ["memory", "watch", "demo"])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("a.foo", "'a.foo' must end in .png, .pdf, .svg"),
        ("a", "'a' must end in .png"),
        (".", "'.' must end in .png"),
        ("", "'' must end in .png"),
        (".png", "'.png' must end in .png"),
        ("{folder}/taken.png", "taken.png' is a folder"),
        ("{run}/a.png", "run.jsonl is not a folder that can be written to"),
        ("/dev/null/new/a.png", "/dev/null is not a folder that can be written to"),
    ],
)
def test_pictures_that_cannot_be_written(
    command: str,
    output: str,
    message: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (run.parent / "taken.png").mkdir()
    begin = {"memory": MEMORY, "watch": ["watch", str(run)], "demo": ["demo", "--quick"]}[command]
    output = output.format(folder=run.parent, run=run)
    said = refused(capsys, *begin, "--output", output)
    assert said.startswith(f"ingot {command}: error: argument --output: ") and message in said


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--set", "max_grad_norm=1"], "max_grad_norm=1 of group 0"),
        (["--optimizer", "bertadam"], "max_grad_norm=1.0 of group 0"),
    ],
)
def test_memory_of_what_release_gradients_refuses(
    options: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *MEMORY, *options, "--release")
    assert said.startswith("ingot memory: error: --release: ") and name in said
    assert "do without clipping, or without releasing gradients" in said


def test_the_picture_leaves_out_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plots = pytest.importorskip("ingot.cli.memory_plot")
    drawn: list[list[str]] = []
    monkeypatch.setattr(plots, "draw", lambda accounts, *rest: drawn.append([*accounts]))
    for options in ([], ["--set", "max_grad_norm=1"]):
        assert main([*MEMORY, *options, "--output", str(tmp_path / "a.png")]) == 0
    assert drawn == [
        ["normal", "released", "offloaded", "offloaded and released"],
        ["normal", "offloaded"],
    ]


LINES: list[tuple[dict[str, Any], str]] = [
    ({"parameters": {"weight": {}}}, "line 2: not a line that optimizer.track_metrics writes"),
    ({"parameters": {"weight": {"grad_norm": 1.0}}}, "line 2: not a line"),
    ({"step": float("inf")}, "line 2: not a line"),
    ({"total_norm": 10**400}, "line 2: not a line"),
]


@pytest.mark.parametrize(("change", "message"), LINES)
def test_lines_that_are_none(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run.jsonl", entry(1), {**entry(2), **change}, entry(3))
    with pytest.raises(ValueError, match=rf"run.jsonl, {message}"):
        read(path)
    assert f"run.jsonl, {message}" in refused(capsys, "watch", str(path))


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_bytes_that_are_no_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00\x01\n")
    with pytest.raises(ValueError, match=f"{name}: not a text in UTF-8"):
        read(path)
    assert f"{path}: not a text in UTF-8" in refused(capsys, "watch", str(path))


def test_rows_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    Csv(path)(Metrics(entry(1)["parameters"], 1, 1.0))
    good = path.read_text()
    for row in ("2,1.0,weight,,,,,,,", f"2,1.0,{'w' * 200_000},1,1,1,1,,,"):
        path.write_text(f"{good}{row}\n")
        with pytest.raises(ValueError, match=r"run.csv(, line 3)?: not .* optimizer.track_metrics"):
            read(path)


def test_a_run_without_any_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {**entry(1), "parameters": {}}
    path = write(tmp_path / "run.jsonl", nothing, {**nothing, "step": 2})
    said = refused(capsys, "watch", str(path))
    assert said.endswith("run.jsonl: no parameter had a gradient in any of the 2 tracked steps")


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/new"])
def test_a_folder_of_results_that_is_none(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "bench", "--parts", "small", "--lists", "mlp", "--out", out)
    assert said.endswith(
        f"error: argument --out: {out!r}: /dev/null is not a folder that can be written to"
    )
    assert parse(["--out", "some/new/folder"]).out == Path("some/new/folder")


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_half_a_line_is_dropped_once_a_run(sink: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    sink(path)(Metrics(entry(1)["parameters"], 1, 1.0))
    good = path.read_text()
    path.write_text(f"{good}2,half")
    write_on = sink(path)
    write_on(Metrics(entry(2)["parameters"], 2, 1.0))
    assert path.read_text().startswith(good) and "half" not in path.read_text()
    with path.open("a") as file:
        file.write("of somebody else")  # while the run goes on
    write_on(Metrics(entry(3)["parameters"], 3, 1.0))
    assert "of somebody else" in path.read_text()


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_half_a_line_of_a_failed_write_is_dropped(
    sink: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    write_on = sink(path)
    write_on(Metrics(entry(1)["parameters"], 1, 1.0))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", lambda *args, **named: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            write_on(Metrics(entry(2)["parameters"], 2, 1.0))
    with path.open("a") as file:
        file.write("2,ha")  # what came to the disk
    write_on(Metrics(entry(2)["parameters"], 2, 1.0))
    assert "ha" not in path.read_text().replace("parameters", "")


@pytest.mark.parametrize("sink", [JsonLines, Csv])
def test_a_pipe_is_written_to(sink: Any, tmp_path: Path) -> None:
    """As /dev/stdout is: it cannot be cut off, nor searched."""
    path, found = tmp_path / "run", list[str]()
    os.mkfifo(path)

    def follow() -> None:
        with path.open() as file:
            found.extend(file.read().splitlines())

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    write_on = sink(path)
    keep_open = path.open("a")
    write_on(Metrics(entry(1)["parameters"], 1, 1.0))
    write_on(Metrics(entry(2)["parameters"], 2, 1.0))
    keep_open.close()
    reader.join(10)
    assert len(found) == (2 if sink is JsonLines else 3)
    if sink is JsonLines:
        assert [json.loads(line)["step"] for line in found] == [1, 2]
