"""Small models, where a step is mostly overhead: step() alone and a whole iteration, on one and on all threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import Parameter

from ingot import optim
from ingot.backends.native import NATIVE
from ingot.cli.bench import floor, peers
from ingot.cli.bench.measure import Entry, Workload
from ingot.cli.bench.models import Model, Training
from ingot.cli.bench.parts import Settings, enter, invited, run_rounds, try_out
from ingot.cli.bench.peers import Contestant
from ingot.cli.bench.records import SMALL_FLOOR, Row, compare
from ingot.cli.bench.show import Show
from ingot.step.bucket import Bucket

STEP, ITERATION = "step", "iteration"  # the part in the CSV
BURST = 0.004  # seconds of a turn: hundreds of steps of a tiny model
NOBODY = Contestant(SMALL_FLOOR, "ingot")

Field = list[tuple[Contestant, Entry]]


def thread_counts(threads: int) -> tuple[int, ...]:
    """One thread, and as many as the command line says."""
    return tuple(sorted({1, threads}))


def use_threads(count: int) -> None:
    """Sets the threads of torch, and those of DeepSpeed, whose kernel has the system's OpenMP and a pool of its own."""
    torch.set_num_threads(count)
    with contextlib.suppress(OSError, AttributeError):  # no such library: nobody has its threads
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(count)


def run_small(
    models: Sequence[Model],
    optimizers: Sequence[str],
    threads: int,
    settings: Settings,
    show: Show,
) -> Iterator[Row]:
    """All optimizers on all models against every peer and the floor; ``threads`` as in ``--threads``."""
    before = torch.get_num_threads()
    try:
        for model in models:
            for count in thread_counts(threads):
                use_threads(count)
                show.stage(f"{model.title}: {count} thread{'s' if count > 1 else ''}")
                yield from run_model(model, optimizers, settings, show)
    finally:
        use_threads(before)


def run_model(
    model: Model, optimizers: Sequence[str], settings: Settings, show: Show
) -> Iterator[Row]:
    """The races of one model, with as many threads as torch has now."""
    shapes = model.shapes
    seconds = settings.share(show.left) / (2 * len(optimizers))
    for optimizer in optimizers:
        for part, field_of in ((STEP, field_of_steps), (ITERATION, field_of_iterations)):
            field = field_of(model, optimizer, settings, show)
            rows = run_rounds(field, shapes, optimizer, part, settings, show, seconds, BURST)
            compare(rows)
            show.brief(rows)
            yield from rows
            del field  # the states of everybody, before the next ones are made
            gc.collect()


def field_of_steps(model: Model, optimizer: str, settings: Settings, show: Show) -> Field:
    """Everybody's step() over the same parameters and gradients."""
    workload = Workload(model.shapes.shapes())
    refill = optimizer in peers.WRITES_GRADS
    if refill:
        workload.keep_grads()
    field: Field = []
    for contestant in invited(optimizer, settings, show):
        entry = enter(contestant, workload, show, refill=refill)
        if entry is not None:
            field.append((contestant, entry))
    reason = floor.missing()
    if reason is None:
        prepare = workload.refill if refill else None
        step = prepared_step(optimizer, workload.params)
        field.append((NOBODY, Entry(SMALL_FLOOR, step, prepare)))
    else:
        show.missing(SMALL_FLOOR, reason)
    return field


def field_of_iterations(model: Model, optimizer: str, settings: Settings, show: Show) -> Field:
    """Everybody's zero_grad(), forward, backward and step() of the same model; the floor has no step."""
    training = Training(model)
    field: Field = []
    for contestant in invited(optimizer, settings, show):
        training.iterate_without_step()  # gradients for the step that is tried out
        made = try_out(contestant, training.params, show)
        if made is not None:
            field.append((contestant, Entry(contestant.name, training.iterate(made))))
    field.append((NOBODY, Entry(SMALL_FLOOR, training.iterate_without_step)))
    return field


def prepared_step(optimizer: str, params: list[Parameter]) -> Callable[[], None]:
    """The math of a step with everything prepared once: addresses, table and scalars.

    Less than any step that looks at its tensors can take. Where gradients are clipped, their norm is computed as well.
    """
    from ingot import _native as core

    kind = getattr(optim, peers.OURS[optimizer])
    owner = kind(params, **peers.OPTIONS[optimizer], backend="native")
    owner.step()  # makes the states
    buckets: list[Bucket] = owner._plan()
    clips = any(map(owner.spec.clips, owner.param_groups))

    def step() -> None:
        for bucket in buckets:
            if clips:
                core.grad_squares(bucket.prepared)
            NATIVE.run(bucket)

    return step
