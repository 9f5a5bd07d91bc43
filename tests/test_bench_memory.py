"""The part of the benchmark that traces memory: what it counts, what it writes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from ingot.cli.bench import main, memory
from ingot.optim import NpuFusedAdamW


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes milliseconds; its gradients are much larger than its activations."""
    for name, value in (("VOCABULARY", 400), ("WIDTH", 64), ("LAYERS", 4), ("TOKENS", 4)):
        monkeypatch.setattr(memory, name, value)


@pytest.mark.usefixtures("tiny")
def test_the_part_runs_and_writes_what_it_found(tmp_path: Path) -> None:
    command = ["--parts", "memory", "--rounds", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    with (tmp_path / "bench.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [(row["optimizer"], row["contestant"]) for row in rows]
    ways = (f"ingot {memory.RELEASED}", f"ingot {memory.NORMAL}")
    assert names == [(name, way) for name in memory.OPTIMIZERS for way in ways]
    assert {row["part"] for row in rows} == {"memory"}
    for released, normal in zip(rows[::2], rows[1::2], strict=True):
        saved = 1e6 * (float(normal["peak_mb"]) - float(released["peak_mb"]))
        share = saved / (4 * int(released["parameters"]))
        assert float(released["grads_saved"]) == pytest.approx(share, abs=2e-3)
        assert share > 0.5
        assert normal["grads_saved"] == "" and float(released["peer_ratio"]) > 0
    picture = (tmp_path / "memory.png").read_bytes()
    assert len(picture) > 10_000

    # The same picture again from the files, without measuring.
    (tmp_path / "memory.png").unlink()
    before = (tmp_path / "bench.csv").read_bytes()
    assert main(["--draw", str(tmp_path)]) == 0
    assert (tmp_path / "bench.csv").read_bytes() == before
    assert (tmp_path / "memory.png").stat().st_size == pytest.approx(len(picture), rel=0.01)


@pytest.mark.usefixtures("tiny")
def test_a_trace_counts_every_byte_and_comes_back_from_its_file(tmp_path: Path) -> None:
    model = memory.LanguageModel()
    optimizer = NpuFusedAdamW(model.parameters())
    iterate = memory.iteration(model, optimizer)
    iterate()
    trace = memory.trace(optimizer, "adamw", memory.NORMAL, iterate)
    size = 4 * sum(param.numel() for param in model.parameters())
    assert trace.gradients == size and trace.kept == 3 * size
    # At the beginning and at the end there are parameters, two states, and gradients.
    assert trace.points[0][1] == pytest.approx(4 * size, abs=4096)
    assert trace.points[-1][1] == pytest.approx(4 * size, abs=4096)
    assert 4 * size < trace.peak < 5 * size
    begin, end = trace.phases["zero_grad"]
    freed = [used for second, used in trace.points if second <= trace.phases["forward"][0]]
    assert begin == 0.0 < end and min(freed) == pytest.approx(3 * size, abs=4096)
    assert list(trace.phases) == list(memory.PHASES)

    memory.write_traces(tmp_path / "memory.csv", [trace])
    (again,) = memory.read_traces(tmp_path / "memory.csv")
    assert [used for _, used in again.points] == [used for _, used in trace.points]
    assert (again.kept, again.gradients, again.way) == (trace.kept, trace.gradients, trace.way)
    for name, phase in trace.phases.items():
        assert again.phases[name] == pytest.approx(phase, abs=1e-6)


def test_the_model_has_the_size_it_is_said_to_have() -> None:
    assert 50e6 < memory.SHAPES.parameters < 53e6
    assert not torch.empty(0).is_meta  # shapes_of_model left no default device behind
