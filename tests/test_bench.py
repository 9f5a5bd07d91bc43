"""The benchmark: its shape lists, its bookkeeping, and that all who take part do the same work. Nothing is timed."""

from __future__ import annotations

import csv
import io
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from ingot.cli.bench import PARTS, main, parse, parts, peers, quiet, scaling
from ingot.cli.bench.measure import Entry, Workload, enough, race
from ingot.cli.bench.records import FLOOR, Row, compare, read_csv, write_csv
from ingot.cli.bench.shapes import SHAPES, tiny
from ingot.cli.bench.show import Show
from ingot.optim import NpuFusedAdamW

SETTINGS = parts.Settings(rounds=2, seconds=0.0, backend=None)


def make_show() -> Show:
    return Show(Console(file=io.StringIO(), width=200), stages=1)


@pytest.mark.parametrize(
    ("key", "tensors", "parameters"),
    [
        ("bert-base", 199, 109_482_240),
        ("resnet-50", 161, 25_557_032),
        ("lora", 256, 8_388_608),
        ("small", 1000, 1_024_000),
    ],
)
def test_shape_lists_are_those_of_the_models(key: str, tensors: int, parameters: int) -> None:
    assert (SHAPES[key].tensors, SHAPES[key].parameters) == (tensors, parameters)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The CSV of a run on a handful of tiny tensors."""
    out = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "ingot", "bench", "--shapes", "tiny", "--rounds", "1"]
    # DeepSpeed, where it is installed, would compile for a minute.
    command += ["--parts", "race,precision,8bit,clip", "--without", "deepspeed", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert (out / "race.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "8bit.png").read_bytes().startswith(b"\x89PNG")
    with (out / "bench.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_optimizer_ran(table: list[dict[str, str]]) -> None:
    ran = {row["optimizer"] for row in table if row["part"] == "race" and row["ours"] == "True"}
    assert ran == set(peers.TITLES) == set(peers.OURS)
    bfloat16 = {row["optimizer"] for row in table if row["dtype"] == "bfloat16"}
    assert bfloat16 == set(peers.TITLES)
    assert {row["optimizer"] for row in table if row["part"] == "clip"} == {
        "adamw",
        "clip_grad_norm_",
    }


def test_torch_took_part(table: list[dict[str, str]]) -> None:
    for optimizer in peers.TORCH:
        names = {row["contestant"] for row in table if row["optimizer"] == optimizer}
        assert {"torch loop", "torch foreach"} <= names
        assert ("torch fused" in names) == (optimizer in ("adamw", "sgd", "adam"))


def test_rows_carry_their_circumstances(table: list[dict[str, str]]) -> None:
    for row in table:
        assert row["torch"] == torch.__version__
        assert row["cpu"] and row["backend"] and row["date"]
        assert int(row["threads"]) >= 1 and int(row["cores"]) >= 1
        assert (int(row["tensors"]), int(row["parameters"])) == (3, 12 + 5 + 24)


def test_ratios_follow_from_the_times(table: list[dict[str, str]]) -> None:
    for row in table:
        if row["ours"] != "True":
            assert row["peer_ratio"] == ""
            continue
        others = [
            float(other["best_ms"])
            for other in table
            if (other["part"], other["optimizer"]) == (row["part"], row["optimizer"])
            and other["ours"] == "False"
            and other["contestant"] != FLOOR
        ]
        if not others:
            continue
        assert float(row["peer_ratio"]) == pytest.approx(
            min(others) / float(row["best_ms"]), rel=1e-3
        )


def test_the_share_of_others_leaves_out_our_own() -> None:
    before = quiet.Clock(total=100.0, busy=40.0, own=10.0)
    after = quiet.Clock(total=120.0, busy=57.0, own=22.0)
    assert quiet.others(before, after) == pytest.approx((17 - 12) / 20)
    assert quiet.others(before, before) is None and quiet.others(None, after) is None


def some_row(contestant: str, best: float, median: float, ours: bool = False) -> Row:
    return Row("race", "adamw", "tiny", 3, 41, "float32", contestant, "", ours, 1, best, median)


def test_compare_takes_the_fastest_peer_and_the_floor() -> None:
    own = some_row("ingot", 2.0, 4.0, ours=True)
    rows = [own, some_row("a", 6.0, 7.0), some_row("b", 5.0, 9.0), some_row(FLOOR, 1.5, 1.6)]
    compare(rows)
    assert (own.peer, own.peer_ratio) == ("b", 2.5)
    assert own.peer_ratio_median == 7.0 / 4.0
    assert [row.floor_share for row in rows] == [0.75, 0.25, 0.3, 1.0]


def test_a_race_gives_everybody_the_same_number_of_steps() -> None:
    prepared: list[str] = []
    entries = [
        Entry(name, step=lambda: None, prepare=lambda name=name: prepared.append(name))
        for name in "abc"
    ]
    assert race(entries, rounds=2) == 2
    counts = {len(entry.samples) for entry in entries}
    assert len(counts) == 1 and counts.pop() >= 2
    assert len({prepared.count(name) for name in "abc"}) == 1
    assert prepared[-1] == "a", "the second round starts with the second contestant"


def test_a_race_ends_by_rounds_or_by_the_clock() -> None:
    assert not enough(2, 100.0, 3, 1.0) and enough(3, 0.0, 3, 1.0)
    assert not enough(4, 100.0, None, 1.0) and enough(5, 0.9, None, 1.0)
    assert enough(40, 0.0, None, 1.0)
    assert not enough(1, 0.0, None, 0.0) and enough(2, 9.0, None, 0.0)


def final_params(contestant: peers.Contestant) -> list[torch.Tensor]:
    """The parameters after three steps; skips the test if the package is not installed."""
    workload = Workload(list(tiny()))
    # Far above what the packages add to the second moment under the root (1e-15), too small to be clipped.
    workload.keep_grads(scale=10.0)
    workload.refill()
    show = make_show()
    entry = parts.enter(contestant, workload, show)
    if entry is None:
        pytest.skip(f"{contestant.name}: {show.notes[contestant.name]}")
    entry.step()
    entry.step()
    return [param.detach() for param in workload.params]


PEERS = [
    (name, peer)
    for name in peers.TITLES
    for peer in peers.peers(name)
    if peer.package != "deepspeed"  # compiles for a minute
]


@pytest.mark.parametrize(
    ("optimizer", "peer"), PEERS, ids=[f"{name}-{peer.name}" for name, peer in PEERS]
)
def test_peers_do_the_same_work(optimizer: str, peer: peers.Contestant) -> None:
    theirs = final_params(peer)
    mine = final_params(peers.ours(optimizer, None))
    start = [param.detach() for param in Workload(list(tiny())).params]
    moved = max((a - b).abs().max().item() for a, b in zip(mine, start, strict=True))
    assert moved > 1e-6
    # A hundredth of the way moved: eps and the norms' guards differ between packages, algorithms do not.
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.01 * moved)


def test_a_missing_package_is_named() -> None:
    show = make_show()
    lost = peers.Contestant("lost", "lost", peers.from_module("no_such_package", "Lamb"))
    assert parts.enter(lost, Workload([(2,)]), show) is None
    assert show.notes == {"lost": "No module named 'no_such_package'"}


def test_refill_puts_gradients_back() -> None:
    workload = Workload(list(tiny()))
    before = [grad.clone() for grad in workload.grads]
    workload.keep_grads(scale=8.0)
    torch._foreach_zero_(workload.grads)
    workload.refill()
    for grad, old in zip(workload.grads, before, strict=True):
        assert torch.equal(grad, 8 * old)


def test_scaling_covers_both_ladders_and_leaves_behind_who_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [
        ("parameters", [scaling.repeat((3, 5), 2, "2")]),
        ("tensors", [scaling.repeat((2,), n, str(n)) for n in (1, 3)]),
    ]
    monkeypatch.setattr(scaling, "ladders", lambda quick: small)
    monkeypatch.setattr(scaling, "PATIENCE", 0.0)  # everybody but ours is too slow after one size
    rows = scaling.run_scaling(["sgd"], SETTINGS, make_show(), quick=True)
    found = [(row.part, row.tensors, row.parameters, row.contestant) for row in rows]
    everybody = ["ingot", "torch loop", "torch foreach", "torch fused"]
    assert found == [
        *(("parameters", 2, 30, name) for name in everybody),
        *(("tensors", 1, 2, name) for name in everybody),
        ("tensors", 3, 6, "ingot"),
    ]
    assert scaling.chosen_of(["sgd", "lamb", "adamw"]) == ["adamw", "lamb"]
    assert scaling.chosen_of(["sgd"]) == ["sgd"]


def test_ladders_reach_what_they_promise() -> None:
    parameters, tensors = (rungs for _, rungs in scaling.ladders(quick=False))
    assert (parameters[0].parameters, parameters[-1].parameters) == (10**6, 400 * 10**6)
    assert (tensors[0].tensors, tensors[-1].tensors) == (10, 10_000)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--shapes", "bert-base,gpt"])
    assert "gpt: choose from bert-base" in capsys.readouterr().err
    assert parse(["--quick"]).shapes == ("resnet-50", "lora", "small")


def test_narrowing_the_race_leaves_out_the_other_parts() -> None:
    assert parse([]).parts == parse(["--quick"]).parts == PARTS
    assert parse(["--lists", "mlp", "--optimizers", "lamb"]).parts == ("small",)
    assert parse(["--lists", "mlp", "--shapes", "lora"]).parts == ("race", "small")
    assert parse(["--shapes", "lora,small"]).parts == ("race",)
    assert parse(["--optimizers", "lamb"]).parts == ("race",)
    asked = parse(["--shapes", "lora", "--optimizers", "lamb", "--parts", "precision,clip"])
    assert asked.parts == ("precision", "clip")


QUICK = ["--shapes", "small,tiny", "--optimizers", "adamw,sgd", "--rounds", "1"]


@pytest.mark.parametrize("finished", [3, 0])
def test_an_interrupted_run_keeps_what_was_finished(
    finished: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C in a race: those before it are written, this one is not."""
    run_field, races = parts.run_field, []

    def interrupted(*arguments: Any) -> list[Row]:
        races.append(arguments)
        if len(races) > finished:
            raise KeyboardInterrupt
        return run_field(*arguments)

    monkeypatch.setattr(parts, "run_field", interrupted)
    threads = str(torch.get_num_threads())
    arguments = [*QUICK, "--threads", threads, "--without", "deepspeed", "--out", str(tmp_path)]
    assert main(arguments) == 130
    said = capsys.readouterr().out
    assert "Interrupted" in said
    if not finished:
        assert "nothing is written" in said and not list(tmp_path.iterdir())
        return
    assert "only the races that were finished are written" in said
    assert "SGD momentum: ms, best / median" in said, "the tables"
    with (tmp_path / "bench.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ran = list(dict.fromkeys((row["shapes"], row["optimizer"]) for row in rows))
    assert ran == [("small", "adamw"), ("small", "sgd"), ("tiny", "adamw")]
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_what_the_generator_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parent.parent
    page = root / "docs" / "benchmarks.md"
    names = runpy.run_path(str(root / "benchmarks" / "summarize.py"))
    copy = tmp_path / page.name
    copy.write_bytes(page.read_bytes())
    monkeypatch.setitem(names["main"].__globals__, "PAGE", copy)
    names["main"]()
    assert copy.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


MACHINE = dict(cpu="a CPU", torch="2.13.0", ingot="0.1.0", commit="", date="2026-01-01T00:00Z")


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [some_row("ingot", 2.0, 4.0, ours=True), some_row("torch fused", 5.0, 9.0)]
    rows[0].threads, rows[1].threads, rows[1].state_bytes = 1, 3, 2**40
    compare(rows)
    write_csv(tmp_path / "bench.csv", rows, {**MACHINE, "threads": "3"})
    assert read_csv(tmp_path / "bench.csv") == (rows, {**MACHINE, "threads": "3"})
    (tmp_path / "bench.csv").write_text("optimizer\nadamw\n")
    with pytest.raises(ValueError, match="holds no results"):
        read_csv(tmp_path / "bench.csv")


def test_drawing_needs_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--draw", str(tmp_path)])
    assert "there is no bench.csv in it" in capsys.readouterr().err


def test_the_front_chart_leaves_out_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [some_row("ingot", 2.0, 4.0, ours=True), some_row("torch fused", 5.0, 9.0)]
    rows += [some_row("quick once", 1.0, 12.0), some_row(FLOOR, 1.0, 1.0)]
    rows = [replace(row, optimizer="adamw", shapes="bert-base") for row in rows]
    write_csv(tmp_path / "bench.csv", rows, {**MACHINE, "threads": "3"})
    script = Path(__file__).parent.parent / "benchmarks" / "front_chart.py"
    names = runpy.run_path(str(script))
    ours, peer = names["race_of"](rows, "race", "adamw", "bert-base")
    assert (ours.contestant, peer.contestant) == ("ingot", "torch fused")
    output = tmp_path / "front.png"
    monkeypatch.setattr(
        sys, "argv", ["front_chart.py", "--results", str(tmp_path), "--output", str(output)]
    )
    names["main"]()
    said = capsys.readouterr().out
    assert said.count("left out") == len(names["LINES"]) - 1 and "AdamP, BERT-base" in said
    assert output.read_bytes().startswith(b"\x89PNG")


def test_a_result_says_who_is_faster() -> None:
    show = make_show()
    rows = [some_row("ingot", 2.0, 4.0, ours=True), some_row("torch fused", 5.0, 9.0)]
    compare(rows)
    show.result(rows)
    said = show.console.file.getvalue()  # type: ignore[attr-defined]
    assert "(2.50 times as fast as torch fused)" in said


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--rounds", "--threads"):
        with pytest.raises(SystemExit) as stop:
            parse([option, "0"])
        assert stop.value.code == 2
        assert f"{option} must be at least 1" in capsys.readouterr().err


def test_one_scaled_step_does_what_three_calls_do() -> None:
    results = []
    for three_calls in (False, True):
        workload = Workload(list(tiny()))
        workload.keep_grads(
            scale=1000 * parts.SCALE
        )  # a norm of about 6: clipping changes the step
        workload.refill()
        options = peers.OPTIONS["adamw"] | {
            "eps": 1.0
        }  # with a large eps the size of gradients shows

        def clip(params: list[torch.nn.Parameter] = workload.params) -> None:
            torch.nn.utils.clip_grad_norm_(params, 1.0)

        if three_calls:
            step = parts.scaled(torch.optim.AdamW(workload.params, **options, fused=True), clip)
        else:
            step = parts.scaled(NpuFusedAdamW(workload.params, **options, max_grad_norm=1.0))
        before = [param.detach().clone() for param in workload.params]
        step()
        results.append([p.detach() - b for p, b in zip(workload.params, before, strict=True)])
    assert max(change.abs().max().item() for change in results[0]) > 1e-5
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-8)
