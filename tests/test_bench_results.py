"""The results of the benchmark: compared, kept when it is interrupted, written, read, drawn and put on the page."""

from __future__ import annotations

import csv
import runpy
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench_rows import make_show, some_row
from ingot.backends import operands
from ingot.cli.bench import main, parse, parts, peers, run
from ingot.cli.bench.records import FLOOR, Row, compare, read_csv, write_csv
from ingot.cli.bench.traffic import Count, read_traffic, write_traffic


def test_compare_takes_the_fastest_peer_and_the_floor() -> None:
    own = some_row("ingot", 2.0, 4.0, ours=True)
    rows = [own, some_row("a", 6.0, 7.0), some_row("b", 5.0, 9.0), some_row(FLOOR, 1.5, 1.6)]
    compare(rows)
    assert (own.peer, own.peer_ratio) == ("b", 2.5)
    assert own.peer_ratio_median == 7.0 / 4.0
    assert [row.floor_share for row in rows] == [0.75, 0.25, 0.3, 1.0]


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


def test_tables_are_bold_where_ours_is_faster_and_show_shares_and_medians() -> None:
    root = Path(__file__).parent.parent
    names = runpy.run_path(str(root / "benchmarks" / "summarize.py"))
    won = {"peer_ratio_median": "1.25", "peer_ratio": "0.9", "floor_share": "0.5"}
    lost = {**won, "peer_ratio_median": "0.97", "peer_ratio": "1.2"}
    assert [names["ratio"](row) for row in (won, lost, None)] == [
        "**1.25** (0.90)",
        "0.97 (1.20)",
        "-",
    ]
    assert names["ratio"]({**won, "peer_ratio_median": "1.004"}) == "1.00 (0.90)"
    row = {"optimizer": "adamw", "contestant": "ingot", "best_ms": "1", "median_ms": "2"}
    step = {**row, **won, "part": "step", "threads": "1", "ours": "True", "shapes": "mlp"}
    text = "\n".join(names["small"]([step, {**step, "part": "iteration"}]))
    assert "| AdamW | **1.25** (0.90) 0.50 |" in text and "| AdamW | **1.25** (0.90) |" in text
    assert "| AdamW, ingot | 2.00 |" in names["growth"](
        [{**row, "part": "tensors", "tensors": "1000"}]
    )


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


def test_a_picture_names_the_commits_of_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(some_row("ingot", 2.0, 4.0, ours=True), part="race")
    new = replace(old, part="step")
    for row in (old, new):
        machine = {**MACHINE, "commit": row.part, "backend": "native", "threads": "3"}
        write_csv(tmp_path / f"{row.part}.csv", [row], machine)
    first, second = ((tmp_path / f"{part}.csv").read_text() for part in ("race", "step"))
    (tmp_path / "bench.csv").write_text(first + second.split("\n", 1)[1])
    assert read_csv(tmp_path / "bench.csv")[1]["commit"] == "race, step"
    assert read_csv(tmp_path / "bench.csv", ["memory"]) == ([], {})
    named = []
    monkeypatch.setattr(run, "draw", lambda *each: named.append(each[3].get("commit")) or [])
    assert main(["--draw", str(tmp_path)]) == 0
    assert named == ["race", None, "step", None, None]


def test_counts_come_back_from_their_file(tmp_path: Path) -> None:
    counts = [
        Count("adamw", "8 of (1024, 1024)", "ingot lists", "0.1.0", 72.0, 7, 0, 0.5),
        Count("adamw", "8 of (1024, 1024)", "torch loop", "2.13.0", 80.0, 80, 8),
    ]
    write_traffic(tmp_path / "traffic.csv", counts, MACHINE)
    found, known = read_traffic(tmp_path / "traffic.csv")
    assert found == counts
    assert known == {"torch": "2.13.0", "ingot": "0.1.0", "commit": "", "date": "2026-01-01"}


def test_a_missing_package_is_left_out_of_the_lists_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "lists_cpu.py"
    names = runpy.run_path(str(script))
    monkeypatch.setattr(operands, "ROUND_ON_CPU", operands.ROUND_ON_CPU)
    monkeypatch.setitem(names["OTHERS"], "adamw", "gone")
    monkeypatch.setattr(
        peers, "peers", lambda _: [peers.Contestant("gone", "gone", peers.from_module("gone", "A"))]
    )
    chosen = Namespace(threads=1, rounds_of=[20], seconds=0.0)
    assert list(names["race"]("adamw", [(2, 3)], chosen)) == ["lists, 2^20"]
    names["race"]("adamw", [(2, 3)], chosen)
    assert capsys.readouterr().out == "not taking part: gone: No module named 'gone'\n"


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
