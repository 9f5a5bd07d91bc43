"""The measurement: interleaved rounds over the same tensors, every step a sample."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor
from torch.nn import Parameter

from ingot.cli.bench.shapes import Shape

# A pool's threads spin for a while after their last job. DeepSpeed brings a second pool: without a rest its
# threads would still be spinning on the cores of whoever comes next, and the other way round.
REST = 0.005
# Below this a step is repeated within its turn, after one that is not counted: the pool is awake, the operands
# are in whatever cache holds them, as for somebody who trains a small model.
SHORT = 0.020
STEPS_PER_TURN = 5
MAX_STEPS_PER_TURN = 200
MIN_ROUNDS, MAX_ROUNDS = 5, 40
MIN_ROUNDS_LATE = 2  # when the time of the whole benchmark is used up


@dataclass
class Entry:
    """Something to time.

    Attributes:
        name: who it is.
        step: what is timed.
        prepare: called before each step, not timed.
        samples: seconds, one per step.
    """

    name: str
    step: Callable[[], object]
    prepare: Callable[[], object] | None = None
    samples: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The fastest step in milliseconds."""
        return 1e3 * min(self.samples)

    @property
    def median(self) -> float:
        """The median step in milliseconds."""
        return 1e3 * statistics.median(self.samples)


class Workload:
    """Parameters and gradients shared by all who take part; only the states are everybody's own."""

    def __init__(self, shapes: Sequence[Shape], dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        # The size of initialised weights and of late gradients: far from subnormal numbers, which are slow.
        self.params = [
            Parameter(torch.empty(shape).normal_(0, 0.02, generator=generator).to(dtype))
            for shape in shapes
        ]
        for param in self.params:
            grad = torch.empty(param.shape).normal_(0, 0.001, generator=generator)
            param.grad = grad.to(dtype)
        self._pristine: list[Tensor] | None = None

    @property
    def grads(self) -> list[Tensor]:
        """The gradients, in the order of the parameters."""
        return [param.grad for param in self.params if param.grad is not None]

    def keep_grads(self, scale: float = 1.0) -> None:
        """Remember the gradients, times ``scale``, for :meth:`refill`."""
        self._pristine = [grad * scale for grad in self.grads]

    def refill(self) -> None:
        """Put the remembered gradients back."""
        assert self._pristine is not None, "keep_grads() first"
        for grad, pristine in zip(self.grads, self._pristine, strict=True):
            grad.copy_(pristine)


def timed(entry: Entry) -> float:
    """The seconds of one step."""
    if entry.prepare is not None:
        entry.prepare()
    start = time.perf_counter()
    entry.step()
    return time.perf_counter() - start


def warm_up(entry: Entry) -> float:
    """Two steps that are not counted: the first creates the states. Returns the seconds of the second."""
    timed(entry)
    return timed(entry)


def steps_per_turn(last: float, burst: float) -> int:
    """How many steps of ``last`` seconds make a turn: a few, or what fits into ``burst`` seconds if that is more."""
    if last >= SHORT:
        return 1
    return max(STEPS_PER_TURN, min(MAX_STEPS_PER_TURN, int(burst / max(last, 1e-9))))


def turn(entry: Entry, last: float, burst: float = 0.0) -> None:
    """One contestant's part of a round; ``last`` is how long its step takes."""
    time.sleep(REST)
    if last < SHORT:
        timed(entry)
    entry.samples += [timed(entry) for _ in range(steps_per_turn(last, burst))]


def race(
    entries: Sequence[Entry],
    *,
    rounds: int | None = None,
    seconds: float = 10.0,
    tick: Callable[[], object] = lambda: None,
    burst: float = 0.0,
) -> int:
    """Times all entries in turns and leaves the samples with them.

    Args:
        entries: who takes part.
        rounds: how many rounds; None takes as many as fit into ``seconds``, from 5 to 40.
        seconds: the time to spend if ``rounds`` is None; 0 makes it 2 rounds.
        tick: called after every turn.
        burst: seconds that a turn of short steps lasts; 0 for a handful of steps.

    Returns:
        The number of rounds.
    """
    last = [warm_up(entry) for entry in entries]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        done, start = 0, time.perf_counter()
        while not enough(done, time.perf_counter() - start, rounds, seconds):
            # Who follows whom changes from round to round, so that nobody always comes after the same one.
            for index in Random(done).sample(range(len(entries)), len(entries)):
                turn(entries[index], last[index], burst)
                tick()
            done += 1
    finally:
        if collecting:
            gc.enable()
    return done


def enough(done: int, spent: float, rounds: int | None, seconds: float) -> bool:
    """Whether a race is over."""
    if rounds is not None:
        return done >= rounds
    if done < (MIN_ROUNDS if seconds > 0 else MIN_ROUNDS_LATE):
        return False
    return done >= MAX_ROUNDS or spent * (done + 1) / done > seconds
