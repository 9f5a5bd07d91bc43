"""The benchmark of small models: their lists, what its entries do, and what it writes. Nothing is timed."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ingot.backends.native import NATIVE
from ingot.cli.bench import main, parse, peers, small, small_show
from ingot.cli.bench.measure import Workload, steps_per_turn
from ingot.cli.bench.models import LISTS, Training
from ingot.cli.bench.records import SMALL_FLOOR, Row
from ingot.cli.bench.small_show import slower

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("key", "tensors"),
    [
        ("mlp", 6),
        ("actor-critic", 12),
        ("tabular", 10),
        ("cnn", 20),
        ("lora", 256),
        ("small", 1000),
    ],
)
def test_lists_have_the_tensors_they_promise(key: str, tensors: int) -> None:
    assert LISTS[key].shapes.tensors == tensors
    assert parse(["--lists", key]).lists == (key,)


@pytest.mark.parametrize("key", LISTS)
def test_models_give_every_parameter_a_gradient(key: str) -> None:
    training = Training(LISTS[key])
    assert [tuple(p.shape) for p in training.params] == LISTS[key].shapes.shapes()
    training.iterate_without_step()
    for param in training.params:
        assert param.grad is not None and bool(param.grad.isfinite().all())


def test_an_iteration_lowers_the_loss() -> None:
    training = Training(LISTS["mlp"])
    iteration = training.iterate(torch.optim.AdamW(training.params, lr=1e-2))
    before = training.loss().item()
    for _ in range(5):
        iteration()
    assert training.loss().item() < before


@pytest.mark.parametrize("optimizer", peers.TITLES)
def test_the_floor_does_the_math_of_a_step(optimizer: str) -> None:
    if NATIVE.unavailable() is not None:
        pytest.skip("no native core")
    shapes = LISTS["mlp"].shapes.shapes()
    prepared, whole = Workload(shapes), Workload(shapes)
    step = small.prepared_step(optimizer, prepared.params)
    build = peers.ours(optimizer, "native").build
    assert build is not None
    ordinary = build(whole.params)
    ordinary.step()
    step()
    ordinary.step()
    for one, other in zip(prepared.params, whole.params, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_turn_of_short_steps_fills_its_time() -> None:
    assert steps_per_turn(1.0, 0.004) == 1
    assert steps_per_turn(0.010, 0.004) == steps_per_turn(1e-5, 0.0) == 5
    assert steps_per_turn(1e-4, 0.004) == 40
    assert steps_per_turn(1e-6, 0.004) == 200


def test_a_run_writes_steps_and_iterations_for_both_thread_counts(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    options = ["--lists", "mlp", "--optimizers", "adamw", "--rounds", "1", "--threads", "2"]
    try:
        assert main([*options, "--without", "deepspeed", "--out", str(tmp_path)]) == 0
    finally:
        small.use_threads(before)
    with (tmp_path / "bench.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["part"], row["threads"]) for row in rows} == {
        (part, threads) for part in ("step", "iteration") for threads in "12"
    }
    for part in ("step", "iteration"):
        names = {row["contestant"] for row in rows if row["part"] == part}
        expected = {"ingot", "torch loop", "torch foreach", "torch fused"}
        has_floor = part == "iteration" or NATIVE.unavailable() is None
        assert names == expected | ({SMALL_FLOOR} if has_floor else set())
    assert all(float(row["peer_ratio"]) > 0 for row in rows if row["ours"] == "True")
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")


def test_races_that_were_lost_are_named() -> None:
    lost = Row("step", "sgd", "mlp", 6, 1, "float32", "ingot", "", True, 1, 2.0, 2.0, threads=1)
    lost.peer, lost.peer_ratio, lost.peer_ratio_median = "torch fused", 0.5, 0.6
    (line,) = slower([lost])
    assert "SGD momentum on MLP, 6 tensors, step() alone, 1 thread: 0.50 / 0.60" in line
    lost.peer_ratio = 1.5
    assert slower([lost]) == []


def test_the_picture_shows_medians_and_names_the_fastest_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(contestant: str, best: float, median: float, ours: bool = False) -> Row:
        sizes = ("adamw", "mlp", 6, 1, "float32")
        return Row("step", *sizes, contestant, "", ours, 1, best, median, threads=1)

    rows = [row("ingot", 0.01, 0.02, True), row("torch loop", 0.1, 0.3), row("timm", 0.2, 0.25)]
    monkeypatch.setattr(small_show.plt, "close", lambda figure: None)
    machine = dict(cpu="a CPU", torch="2.13.0", ingot="0.1.0", commit="", date="2026", backend="")
    assert small_show.draw_small(rows, machine, tmp_path / "small.png") is not None
    figure = small_show.plt.gcf()
    monkeypatch.undo()
    small_show.plt.close(figure)
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["20.0", "timm"]
    assert "µs per step" in figure.legends[0].get_title().get_text()


def test_planning_is_timed_on_the_simulated_npu() -> None:
    script = str(ROOT / "benchmarks" / "planning.py")
    options = ["--tensors", "3", "--rounds", "1", "--optimizers", "NpuFusedSGD", "--profile"]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    assert "NpuFusedSGD" in done.stdout and "lists" in done.stdout
    assert "tottime" in done.stdout
