"""`ingot watch`: which parameters it says stand out, and what its picture shows."""

from __future__ import annotations

import itertools
import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.cli import main
from ingot.metrics import Metrics
from ingot.metrics.verdict import stand_out
from training import fit, small_model

ROOT = Path(__file__).parent.parent


def optimize(*to: Path) -> None:
    """Track a short run of LAMB into files."""
    model = small_model()
    optimizer = ingot.create_optimizer(model, "lamb", lr=0.01, max_grad_norm=0.5)
    optimizer.track_metrics(2, to)
    fit(model, optimizer, 8)


def run_of(**ratios: float) -> list[Metrics]:
    """A run of four tracked steps in which parameters have these update ratios, and gradients of norm 1."""
    values = {
        name: {"update_ratio": ratio, "grad_norm": 1.0, "weight_norm": 1.0, "update_norm": ratio}
        for name, ratio in ratios.items()
    }
    return [Metrics(values, step, 1.0) for step in range(1, 5)]


def test_what_stands_out() -> None:
    usual = {"a": 1e-3, "b": 2e-3, "c": 5e-4}
    assert stand_out(run_of(**usual)) == {}
    odd = {"slow": 1e-7, "still": 0.0, "fast": 0.05, "wild": 3.0, "lost": math.nan}
    found = stand_out(run_of(**usual, **odd))
    kinds = {name: verdict.kind for name, verdict in found.items()}
    assert kinds == {
        "slow": "dying",
        "still": "dying",
        "fast": "exploding",
        "wild": "exploding",
        "lost": "exploding",
    }


def test_a_dead_layer_has_one_reason() -> None:
    """Its gradients: the update of a weight that decays is not 0, that of a bias is."""
    run = with_gradients(weight=(1.0, 0.0), bias=(1.0, 0.0), other=(1.0, 1.0))
    for metrics in run:
        metrics["bias"]["update_ratio"] = 0.0
    assert {verdict.why for verdict in stand_out(run).values()} == {"gradient norm 0"}


def test_only_the_last_quarter_counts() -> None:
    run = run_of(a=1e-3, b=1e-3) * 3
    assert stand_out([*run_of(a=1e-3, b=0.5), *run]) == {}
    assert set(stand_out([*run, *run_of(a=1e-3, b=0.5)])) == {"b"}


def with_gradients(**norms: tuple[float, float]) -> list[Metrics]:
    """A run whose parameters have one gradient norm in its first half and another in its second."""
    run = []
    for step in range(1, 9):
        level = {name: pair[step > 4] for name, pair in norms.items()}
        run.append(
            Metrics({n: {"update_ratio": 1e-3, "grad_norm": g} for n, g in level.items()}, step)
        )
    return run


def test_healthy_layers_do_not_explode_where_others_vanish() -> None:
    """Gradients that vanish towards the input make the median tiny; what is far above it was always there."""
    vanishing = {f"layer{k}": (5.0**-k, 5.0**-k) for k in range(11)}
    found = stand_out(with_gradients(**vanishing))
    assert {name: verdict.kind for name, verdict in found.items()} == {"layer10": "dying"}
    found = stand_out(with_gradients(**vanishing, wild=(1e-2, 20.0), late=(0.0, 20.0)))
    assert [n for n, verdict in found.items() if verdict.kind == "exploding"] == ["wild", "late"]


def test_watch_names_both_layers_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    example = str(ROOT / "examples" / "watch_training.py")
    options = ["--steps", "240", "--output", str(tmp_path / "run.jsonl")]
    monkeypatch.setattr(sys, "argv", [example, *options])
    runpy.run_path(example, run_name="__main__")
    capsys.readouterr()
    assert main(["watch", str(tmp_path / "run.jsonl")]) == 0
    words = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    dying = [name for kind, name in words if kind == "dying"]
    exploding = [name for kind, name in words if kind == "exploding"]
    assert dying == ["blocks.2.0.weight", "blocks.2.0.bias", "blocks.2.2.weight"]
    assert exploding == ["blocks.4.2.weight", "blocks.4.2.bias"]
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_watch_draws_trust_ratios_and_broken_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    optimize(tmp_path / "run.jsonl")
    assert main(["watch", str(tmp_path / "run.jsonl"), "--output", str(tmp_path / "a.png")]) == 0
    broken = run_of(a=math.nan, b=math.inf, c=0.0)
    text = "\n".join(json.dumps({**m.as_dict(), "total_norm": "NaN"}) for m in broken)
    (tmp_path / "run.jsonl").write_text(
        text.replace("Infinity", '"Infinity"').replace(" NaN", ' "NaN"') + "\n"
    )
    assert main(["watch", str(tmp_path / "run.jsonl"), "--output", str(tmp_path / "b.png")]) == 0
    assert (tmp_path / "a.png").exists() and (tmp_path / "b.png").exists()


def test_the_verdicts_need_no_package(tmp_path: Path) -> None:
    optimize(tmp_path / "run.jsonl")
    program = "import sys; sys.modules['matplotlib'] = None; from ingot.cli import main; main(['watch', 'run.jsonl'])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and "pip install matplotlib" in done.stderr
    assert "4 tracked steps" in done.stdout and "No parameter stands out." in done.stdout
    assert not (tmp_path / "run.png").exists()


@pytest.mark.parametrize("content", [None, "", "no json\n"])
def test_watch_says_what_is_wrong_with_a_file(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "run.jsonl").write_text(content)
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path / "run.jsonl")])
    assert "run.jsonl" in capsys.readouterr().err


def test_watch_reads_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    optimize(tmp_path / "run.jsonl", tmp_path / "run.csv")
    said = []
    for kind in ("jsonl", "csv"):
        picture = str(tmp_path / f"{kind}.png")
        assert main(["watch", str(tmp_path / f"run.{kind}"), "--output", picture]) == 0
        said.append(capsys.readouterr().out.replace(picture, ""))
    assert said[0] == said[1] and "4 tracked steps" in said[0]
    assert (tmp_path / "jsonl.png").read_bytes() == (tmp_path / "csv.png").read_bytes()


def drawn(run: list[Metrics], path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure, still open."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from ingot.cli import watch_plot

    monkeypatch.setattr(watch_plot.pyplot, "close", lambda figure: None)
    watch_plot.draw(run, stand_out(run), path)
    figure = watch_plot.pyplot.gcf()
    monkeypatch.undo()
    watch_plot.pyplot.close(figure)
    FigureCanvasAgg(figure)  # closed figures have no renderer, and texts no size without
    return figure


def titles(figure: Any) -> list[str]:
    return [title.split(":")[0] for axes in figure.axes if (title := axes.get_title(loc="left"))]


def test_the_gradient_norm_is_drawn_with_and_without_trust_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(a=1e-3, b=1e-3)
    always = ["Norm of all gradients, before clipping", "Update ratio", "Gradient norm"]
    assert titles(drawn(run, tmp_path / "a.png", monkeypatch)) == always
    for metrics in run:
        for values in metrics.values():
            values["trust_ratio"] = 2.0
    figure = drawn(run, tmp_path / "b.png", monkeypatch)
    assert titles(figure) == [*always, "LAMB's trust ratio"]


@pytest.mark.parametrize("count", [30, 65, 300])
def test_no_two_labels_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Neither names nor verdicts, also where all of a block and its neighbours stand out."""
    ratios = {f"layers.{i}.weight": 1e-3 for i in range(count)}
    ratios |= {f"layers.{i}.weight": 0.0 for i in range(5, 14)}
    ratios |= {f"layers.{i}.weight": 0.5 for i in range(14, 16)}
    figure = drawn(run_of(**ratios), tmp_path / "a.png", monkeypatch)
    renderer = figure.canvas.get_renderer()
    panel = figure.axes[1]
    for texts in ([label for label in panel.get_yticklabels() if label.get_text()], panel.texts):
        boxes = sorted((t.get_window_extent(renderer) for t in texts), key=lambda box: box.y0)
        assert len(boxes) >= 2
        # A pixel of line spacing may touch; a letter may not.
        assert all(low.y1 <= high.y0 + 3 for low, high in itertools.pairwise(boxes))
    words = " ".join(text.get_text() for text in panel.texts)
    assert "dying" in words and "exploding" in words
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert any(name.startswith("layers.5.weight") for name in names)
    assert len(names) > 10  # those that do not stand out are named, too, where there is room
