"""The benchmark: its shape lists, its races and its options. Nothing is timed."""

from __future__ import annotations

import csv
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch

from bench_rows import make_show
from ingot.cli.bench import PARTS, parse, parts, peers, quiet, scaling
from ingot.cli.bench.measure import Entry, Workload, enough, race
from ingot.cli.bench.records import FLOOR
from ingot.cli.bench.shapes import SHAPES, tiny

SETTINGS = parts.Settings(rounds=2, seconds=0.0, backend=None)


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


@pytest.mark.parametrize(
    ("optimizers", "expected"), [("lamb,adamw,rmsprop", ["adamw", "lamb"]), ("rmsprop", [])]
)
def test_a_part_measures_the_optimizers_asked_for(
    optimizers: str, expected: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ingot", "bench", "--shapes", "tiny", "--rounds", "1"]
    command += ["--parts", "8bit", "--optimizers", optimizers, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "bench.csv").open(newline="", encoding="utf-8") as file:
        assert list(dict.fromkeys(row["optimizer"] for row in csv.DictReader(file))) == expected
    assert ("this part measures adamw, sgd" in done.stdout) == (not expected)


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


def test_everybody_comes_after_everybody_else() -> None:
    prepared: list[str] = []
    entries = [
        Entry(name, step=lambda: None, prepare=lambda name=name: prepared.append(name))
        for name in "abcd"
    ]
    race(entries, rounds=20)
    turns = [name for name, _ in groupby(prepared)]
    follows = set(pairwise(turns))
    assert follows == {(one, other) for one in "abcd" for other in "abcd" if one != other}


def test_a_race_ends_by_rounds_or_by_the_clock() -> None:
    assert not enough(2, 100.0, 3, 1.0) and enough(3, 0.0, 3, 1.0)
    assert not enough(4, 100.0, None, 1.0) and enough(5, 0.9, None, 1.0)
    assert enough(40, 0.0, None, 1.0)
    assert not enough(1, 0.0, None, 0.0) and enough(2, 9.0, None, 0.0)


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


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--rounds", "--threads"):
        with pytest.raises(SystemExit) as stop:
            parse([option, "0"])
        assert stop.value.code == 2
        assert f"{option} must be at least 1" in capsys.readouterr().err
