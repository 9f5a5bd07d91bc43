"""Memory over one iteration, and the time of one, with normal steps and with gradients released inside backward."""

from __future__ import annotations

import csv
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from ingot import optim
from ingot.cli.bench import peers
from ingot.cli.bench.measure import Entry
from ingot.cli.bench.parts import Settings, fits, run_rounds
from ingot.cli.bench.peers import Contestant
from ingot.cli.bench.records import Row, compare
from ingot.cli.bench.shapes import Shape, ShapeList
from ingot.cli.bench.show import Show
from ingot.optimizer import FusedOptimizer

PART = "memory"
OPTIMIZERS = ("adamw", "lamb")
NORMAL, RELEASED = "normal steps", "release_gradients()"
PHASES = ("zero_grad", "forward", "backward", "step")
OPERANDS = (
    10  # two models with parameters, gradients and two states, and what a backward pass needs
)
VOCABULARY, WIDTH, LAYERS, TOKENS = 8192, 512, 15, 128


class LanguageModel(nn.Module):
    """A transformer of 52 M parameters whose first and last matrix are one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of predicting the tokens themselves; what it means does not matter here."""
        hidden = self.layers(self.embedding(tokens))
        scores = nn.functional.linear(hidden, self.embedding.weight)
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


@dataclass(frozen=True)
class Trace:
    """Memory over one iteration.

    Attributes:
        optimizer: which.
        way: ``NORMAL`` or ``RELEASED``.
        points: seconds since the beginning, and bytes in use: parameters, states and all that comes and goes.
        phases: beginning and end of each phase, in seconds.
        kept: bytes of parameters and states.
        gradients: bytes of all gradients together.
    """

    optimizer: str
    way: str
    points: list[tuple[float, int]]
    phases: dict[str, tuple[float, float]]
    kept: int
    gradients: int

    @property
    def peak(self) -> int:
        """The most bytes in use at once."""
        return max(size for _, size in self.points)


COLUMNS = ("optimizer", "way", "what", "second", "until", "bytes")


def write_traces(path: Path, traces: Sequence[Trace]) -> None:
    """One line per phase and per change of the memory in use, for :func:`read_traces`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for each in traces:
            name = each.optimizer, each.way
            writer.writerow((*name, "kept", "", "", each.kept))
            writer.writerow((*name, "gradients", "", "", each.gradients))
            for phase, (begin, end) in each.phases.items():
                writer.writerow((*name, phase, f"{begin:.6f}", f"{end:.6f}", ""))
            for second, used in each.points:
                writer.writerow((*name, "memory", f"{second:.6f}", "", used))


def read_traces(path: Path) -> list[Trace]:
    """What :func:`write_traces` has written."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for name in dict.fromkeys((row["optimizer"], row["way"]) for row in rows):
        own = [row for row in rows if (row["optimizer"], row["way"]) == name]
        sizes = {row["what"]: int(row["bytes"]) for row in own if not row["second"]}
        phases = {r["what"]: (float(r["second"]), float(r["until"])) for r in own if r["until"]}
        points = [(float(r["second"]), int(r["bytes"])) for r in own if r["what"] == "memory"]
        found.append(Trace(*name, points, phases, sizes["kept"], sizes["gradients"]))
    return found


def shapes_of_model() -> Iterator[Shape]:
    """The shapes of the model's parameters, without making them."""
    with torch.device("meta"):
        yield from (tuple(param.shape) for param in LanguageModel().parameters())


SHAPES = ShapeList("language-model", "Transformer", shapes_of_model)


def iteration(model: nn.Module, optimizer: FusedOptimizer) -> Callable[[], None]:
    """One iteration of a usual training loop."""
    tokens = torch.randint(VOCABULARY, (2, TOKENS // 2))

    def iterate() -> None:
        with record_function("zero_grad"):
            optimizer.zero_grad()
        with record_function("forward"):
            loss = model(tokens)
        with record_function("backward"):
            loss.backward()
        del loss
        with record_function("step"):
            optimizer.step()

    return iterate


def trace(optimizer: FusedOptimizer, name: str, way: str, iterate: Callable[[], None]) -> Trace:
    """What one iteration allocates and frees, told by torch's profiler.

    The profiler does not report that memory is freed if it was allocated before. So two iterations are made, and the
    second is traced: it begins with the gradients of the first.
    """
    params = optimizer.all_params()
    slots = [value for slots in optimizer.state.values() for value in slots.values()]
    kept = bytes_of([*params, *(value for value in slots if isinstance(value, Tensor))])
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        iterate()
        iterate()
    assert record.profiler is not None and record.profiler.kineto_results is not None
    events = sorted(record.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    marks = {event.name(): event for event in events if event.name() in PHASES}  # the second ones
    start = marks["zero_grad"].start_ns()
    used, points = kept, []
    for event in events:
        if event.name() == "[memory]":
            used += event.nbytes()
            points.append(((event.start_ns() - start) / 1e9, used))
    before = [used for second, used in points if second < 0]
    points = [(0.0, before[-1]), *(point for point in points if point[0] >= 0)]
    phases = {
        name: ((e.start_ns() - start) / 1e9, (e.start_ns() + e.duration_ns() - start) / 1e9)
        for name, e in sorted(marks.items(), key=lambda item: PHASES.index(item[0]))
    }
    return Trace(name, way, points, phases, kept, bytes_of(params))


def bytes_of(tensors: list[Tensor]) -> int:
    """The memory of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def run_memory(
    optimizers: Sequence[str], settings: Settings, show: Show, traces: list[Trace]
) -> Iterator[Row]:
    """Both ways of training the same model, in turns; one more iteration of each is traced and put into ``traces``."""
    for name in optimizers:
        show.stage(f"{SHAPES.title}: {peers.TITLES[name]}, memory")
        reason = fits(SHAPES, OPERANDS)
        if reason is not None:
            show.missing(SHAPES.title, reason)
            return
        field, runs = [], []
        for way in (RELEASED, NORMAL):
            model = LanguageModel()
            kind = getattr(optim, peers.OURS[name])
            optimizer = kind(model.parameters(), **peers.OPTIONS[name], backend=settings.backend)
            if way == RELEASED:
                optimizer.release_gradients()
            iterate = iteration(model, optimizer)
            for _ in range(4):  # until steps take the quick path
                iterate()
            who = Contestant(f"ingot {way}", "ingot", ours=way == RELEASED)
            field.append((who, Entry(who.name, iterate)))
            runs.append((optimizer, name, way, iterate))
        seconds = settings.share(show.left)
        rows = run_rounds(field, SHAPES, name, PART, settings, show, seconds)
        compare(rows)
        released, normal = (trace(*run) for run in runs)
        traces += [normal, released]
        for row, each in zip(rows, (released, normal), strict=True):
            row.peak_mb = each.peak / 1e6
        rows[0].grads_saved = (normal.peak - released.peak) / normal.gradients
        show.result(rows)
        yield from rows
        del field, runs, model, optimizer, iterate
        gc.collect()
