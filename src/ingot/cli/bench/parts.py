"""The parts of the benchmark that race: all optimizers, two precisions, and clipping inside the step."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from ingot.cli.bench import floor, machine, peers, quiet
from ingot.cli.bench.measure import Entry, Workload, race
from ingot.cli.bench.peers import Contestant
from ingot.cli.bench.records import FLOOR, Row, compare, row_of
from ingot.cli.bench.shapes import ShapeList
from ingot.cli.bench.show import Show

SCALE = 1024.0


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    rounds: int | None
    seconds: float
    backend: str | None
    deadline: float = math.inf  # of time.monotonic(), for all parts together
    without: frozenset[str] = frozenset()  # packages that shall not take part
    patience: float = 0.0  # seconds to wait before a race for a quiet machine

    def share(self, stages: int) -> float:
        """Seconds for the next race when ``stages`` are left, it included; 0 if it is late."""
        left = max(0.0, self.deadline - time.monotonic())
        return min(self.seconds, left / max(1, stages))


def try_out(
    contestant: Contestant, params: list[Parameter], show: Show
) -> torch.optim.Optimizer | None:
    """Builds a contestant's optimizer and tries one step; says why if it cannot take part."""
    assert contestant.build is not None
    try:
        with warnings.catch_warnings():
            if not contestant.ours:
                warnings.simplefilter("ignore")  # about their own use of torch
            optimizer = contestant.build(params)
            optimizer.step()
    except Exception as error:  # whatever a stranger's package raises
        if contestant.ours:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        show.missing(contestant.name, reason)
        return None
    return optimizer


def enter(
    contestant: Contestant, workload: Workload, show: Show, *, refill: bool = False
) -> Entry | None:
    """What is timed of a contestant; None if it cannot take part."""
    optimizer = try_out(contestant, workload.params, show)
    if optimizer is None:
        return None
    return Entry(contestant.name, optimizer.step, workload.refill if refill else None)


def invited(optimizer: str, settings: Settings, show: Show) -> Iterator[Contestant]:
    """Ours and all others, but for those that the command line leaves out."""
    for contestant in (peers.ours(optimizer, settings.backend), *peers.peers(optimizer)):
        if contestant.package in settings.without:
            show.missing(contestant.name, "left out by --without")
        else:
            yield contestant


def run_race(
    shapes: ShapeList, optimizers: Sequence[str], settings: Settings, show: Show
) -> Iterator[Row]:
    """Every optimizer on one shape list, against every peer and the floor."""
    workload = Workload(shapes.shapes())
    for optimizer in optimizers:
        refill = optimizer in peers.WRITES_GRADS
        if refill:
            workload.keep_grads()
        show.stage(f"{shapes.title}: {peers.TITLES[optimizer]}")
        field = []
        for contestant in invited(optimizer, settings, show):
            entry = enter(contestant, workload, show, refill=refill)
            if entry is not None:
                field.append((contestant, entry))
        reason = floor.missing()
        if reason is None:
            entry = Entry(FLOOR, floor.build(optimizer, workload.grads))
            field.append((Contestant(FLOOR, "ingot"), entry))
        else:
            show.missing(FLOOR, reason)
        yield from run_field(field, shapes, optimizer, "race", settings, show)


def run_field(
    field: Sequence[tuple[Contestant, Entry]],
    shapes: ShapeList,
    optimizer: str,
    part: str,
    settings: Settings,
    show: Show,
) -> list[Row]:
    """One race and its rows, compared and shown."""
    rows = run_rounds(field, shapes, optimizer, part, settings, show, settings.share(show.left))
    compare(rows)
    show.result(rows)
    return rows


def run_rounds(
    field: Sequence[tuple[Contestant, Entry]],
    shapes: ShapeList,
    optimizer: str,
    part: str,
    settings: Settings,
    show: Show,
    seconds: float,
    burst: float = 0.0,
) -> list[Row]:
    """One race and its rows; ``seconds`` and ``burst`` as in ``race``."""
    entries = [entry for _, entry in field]
    quiet.wait(settings.patience)
    before = quiet.Clock.read()
    rounds = race(entries, rounds=settings.rounds, seconds=seconds, tick=show.tick, burst=burst)
    rows = [row_of(entry, who, shapes, optimizer, part, rounds) for who, entry in field]
    busy = quiet.others(before, quiet.Clock.read())
    for row in rows:
        row.others_cpu = busy
    return rows


def run_precision(
    shapes: ShapeList, optimizers: Sequence[str], settings: Settings, show: Show
) -> Iterator[Row]:
    """bfloat16 parameters and gradients with float32 states, against float32 throughout."""
    full = Workload(shapes.shapes())
    half = Workload(shapes.shapes(), torch.bfloat16)
    for optimizer in optimizers:
        show.stage(f"{shapes.title}: {peers.TITLES[optimizer]} in bfloat16")
        own = peers.ours(optimizer, settings.backend)
        field = []
        for workload, dtype in ((half, "bfloat16"), (full, "float32")):
            # Ours in float32 is what bfloat16 is compared with here, so it stands as the peer.
            who = Contestant(f"{own.name} {dtype}", "ingot", own.build, workload is half)
            entry = enter(who, workload, show)
            assert entry is not None
            field.append((who, entry))
        found = run_field(field, shapes, optimizer, "precision", settings, show)
        found[0].dtype = "bfloat16"
        yield from found


def run_clip(shapes: ShapeList, settings: Settings, show: Show) -> Iterator[Row]:
    """Unscale, clip and step: torch's three calls against one; and clipping alone."""
    workload = Workload(shapes.shapes())
    workload.keep_grads(SCALE)
    options = peers.OPTIONS["adamw"]
    show.stage(f"{shapes.title}: unscale, clip and step")
    own = peers.ours("adamw", settings.backend, max_grad_norm=1.0)
    assert own.build is not None
    our_optimizer = own.build(workload.params)
    torch_optimizer = torch.optim.AdamW(workload.params, **options, fused=True)

    def clip() -> None:
        clip_grad_norm_(workload.params, 1.0)

    ours_step = scaled(our_optimizer)
    torch_step = scaled(torch_optimizer, clip)
    three = Contestant("torch: unscale_, clip_grad_norm_, fused step", "torch")
    one = Contestant(f"{own.name}: one step(max_grad_norm)", "ingot", ours=True)
    together = [
        (one, Entry(one.name, ours_step, workload.refill)),
        (three, Entry(three.name, torch_step, workload.refill)),
    ]
    yield from run_field(together, shapes, "adamw", "clip", settings, show)

    show.stage(f"{shapes.title}: clipping alone")
    fused: Any = our_optimizer
    theirs = Contestant("torch clip_grad_norm_", "torch")
    mine = Contestant(f"{own.name} clip_grad_norm_fused_", "ingot", ours=True)
    alone = [
        (mine, Entry(mine.name, lambda: fused.clip_grad_norm_fused_(1.0), workload.refill)),
        (theirs, Entry(theirs.name, clip, workload.refill)),
    ]
    yield from run_field(alone, shapes, "clip_grad_norm_", "clip", settings, show)


def scaled(
    optimizer: torch.optim.Optimizer, clip: Callable[[], None] | None = None
) -> Callable[[], object]:
    """A step under a GradScaler: with ``clip`` between unscaling and step, or left to the step itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaler.scale(torch.ones(()))  # a scaler creates its scale when it is first used

    def step() -> None:
        if clip is not None:
            scaler.unscale_(optimizer)
            clip()
        scaler.step(optimizer)
        scaler.update()

    return step


def fits(shapes: ShapeList, operands: int) -> str | None:
    """Why a part cannot run in the memory there is, for ``operands`` float32 copies of the parameters."""
    free = machine.free_bytes()
    need = 4 * operands * shapes.parameters
    if free is None or need < 0.9 * free:
        return None
    return f"needs {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
