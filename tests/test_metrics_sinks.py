"""Where metrics go, and how files of them are read again."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.metrics import Metrics, read
from ingot.metrics.sinks import file_sink
from training import fit, give_grads, make_params, small_model


def tracked(to: Any, steps: int = 4, name: str = "lamb") -> ingot.optimizer.FusedOptimizer:
    """An optimizer that has made some steps, every second one of them tracked."""
    model = small_model()
    optimizer = ingot.create_optimizer(model, name, lr=0.01, max_grad_norm=0.5)
    optimizer.track_metrics(2, to)
    fit(model, optimizer, steps)
    return optimizer


def test_a_dictionary_and_a_function() -> None:
    history: dict[int, Metrics] = {}
    seen: list[Metrics] = []
    optimizer = tracked([history, seen.append])
    assert list(history) == [2, 4] and seen == list(history.values())
    assert history[4] is optimizer.metrics()


def test_json_lines_come_back_as_they_were(tmp_path: Path) -> None:
    history: dict[int, Metrics] = {}
    tracked([history, tmp_path / "run.jsonl"])
    found = read(tmp_path / "run.jsonl")
    assert [each.as_dict() for each in found] == [each.as_dict() for each in history.values()]
    entry = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    assert entry["step"] == 4 and entry["parameters"]["0.weight"]["trust_ratio"] > 0


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    params = [*make_params([(3,)]), torch.nn.Parameter(torch.zeros(3))]
    optimizer = ingot.AdamW(params)
    optimizer.track_metrics(1, tmp_path / "run.jsonl")
    give_grads(params, 0)
    params[0].grad[0] = torch.nan
    optimizer.step()

    def no_constants(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    json.loads((tmp_path / "run.jsonl").read_text(), parse_constant=no_constants)
    broken, zero = read(tmp_path / "run.jsonl")[0].values()
    assert math.isnan(broken["grad_norm"]) and zero["update_ratio"] == math.inf


def test_a_run_that_was_resumed_or_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    tracked(path, steps=8)
    tracked(path, steps=5)  # again from the start: 2, 4
    assert [metrics.step for metrics in read(path)] == [2, 4]
    with path.open("a") as file:
        file.write('{"step": 6, "total')
    assert [metrics.step for metrics in read(path)] == [2, 4]
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"run.jsonl, line 7: not a line"):
        read(path)


def test_csv(tmp_path: Path) -> None:
    optimizer = tracked(str(tmp_path / "run.csv"), name="adamp")
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["2"] * 6 + ["4"] * 6
    last = optimizer.metrics()
    for row, (name, values) in zip(rows[6:], last.items(), strict=True):
        assert row["parameter"] == name and float(row["total_norm"]) == last.total_norm
        assert {q: float(row[q]) for q in values} == values
        assert row["trust_ratio"] == ""


@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_csv_comes_back_as_json_lines_do(tmp_path: Path, name: str) -> None:
    tracked([tmp_path / "run.jsonl", tmp_path / "run.csv"], name=name)
    one, other = (read(tmp_path / f"run.{kind}") for kind in ("jsonl", "csv"))
    assert [each.as_dict() for each in one] == [each.as_dict() for each in other]
    assert [each.step for each in other] == [2, 4]


def test_csv_of_a_run_that_was_resumed_or_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    tracked(path, steps=4)
    tracked(path, steps=4)
    assert [(each.step, len(each)) for each in read(path)] == [(2, 6), (4, 6)]
    path.write_text("\n".join(path.read_text().splitlines()[:7]) + "\n")
    tracked(path, steps=2)  # step 2 twice, one after the other
    assert [(each.step, len(each)) for each in read(path)] == [(2, 6)]
    whole = read(path)[0].as_dict()
    with path.open("a") as file:
        file.write("4,1.5,0.weight,0.1")
    assert [each.as_dict() for each in read(path)] == [whole]
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"run.csv, line 14: not a line"):
        read(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"run.csv, line 1: not a line"):
        read(path)


def entry(step: int) -> Metrics:
    """The metrics of a step over two parameters."""
    values = {"grad_norm": step / 3, "weight_norm": 1.0, "update_norm": 0.1, "update_ratio": 0.1}
    return Metrics({"0.weight": values, "0.bias": dict(values)}, step, 1.5 * step, None)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_run_goes_on_after_one_that_was_killed_anywhere(tmp_path: Path, kind: str) -> None:
    """Half of a line is dropped, also half of the line with the names of the columns."""
    path = tmp_path / f"run.{kind}"
    for step in (2, 4):
        file_sink("", path)(entry(step))
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        sink = file_sink("", path)
        for step in (4, 6):
            sink(entry(step))
        kept = path.read_bytes()
        assert kept.startswith(whole[: whole[:length].rfind(b"\n") + 1])
        found = read(path)
        assert [each.as_dict() for each in found[-2:]] == [entry(4).as_dict(), entry(6).as_dict()]
        assert [each.step for each in found[:-2]] in ([], [2])


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_long_line_that_was_cut_off(tmp_path: Path, kind: str) -> None:
    """It is looked for from the end of the file, a piece at a time."""
    path = tmp_path / f"run.{kind}"
    file_sink("", path)(entry(2))
    with path.open("a") as file:
        file.write("x" * 300_000)
    file_sink("", path)(entry(4))
    assert [each.as_dict() for each in read(path)] == [entry(2).as_dict(), entry(4).as_dict()]
    path.write_text("y" * 300_000)
    file_sink("", path)(entry(6))
    assert [each.as_dict() for each in read(path)] == [entry(6).as_dict()]


def test_tensorboard(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = tensorboard.SummaryWriter(tmp_path)
    optimizer = tracked(writer)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    values = [event.value for event in events.Scalars("update_ratio/0.weight")]
    assert [event.step for event in events.Scalars("total_norm")] == [2, 4]
    assert values[-1] == pytest.approx(optimizer.metrics()["0.weight"]["update_ratio"])


class Writer:
    """What SummaryWriter has."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Take a number."""
        self.written.append((tag, value, step))


def test_a_writer_gets_one_chart_per_quantity_and_parameter() -> None:
    writer = Writer()
    last = tracked(writer).metrics()
    written = {tag: value for tag, value, step in writer.written if step == 4}
    assert written.pop("total_norm") == last.total_norm
    assert written.pop("clip_coefficient") == last.clip_coefficient
    assert written == {f"{q}/{name}": v for name, values in last.items() for q, v in values.items()}


@pytest.mark.parametrize(
    ("to", "error", "message"),
    [
        ("run.txt", ValueError, "to='run.txt' must end in .jsonl or .csv"),
        ("nowhere/run.csv", FileNotFoundError, "there is no folder nowhere"),
        (3, TypeError, "to must be the path of a .jsonl or .csv file, a dict"),
    ],
)
def test_a_place_that_cannot_be_is_refused(to: Any, error: type[Exception], message: str) -> None:
    optimizer = ingot.SGD(make_params([(3,)]), lr=0.1)
    with pytest.raises(error, match=message):
        optimizer.track_metrics(1, to)
    with pytest.raises(RuntimeError):  # nothing was switched on
        optimizer.metrics()
