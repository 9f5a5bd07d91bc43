"""Decides which steps are observed, gives parameters their names, and hands the metrics to their sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor

from ingot.declare.options import Rule
from ingot.metrics.names import distinct_names
from ingot.metrics.observe import Observation
from ingot.metrics.record import Metrics
from ingot.metrics.sinks import Sink
from ingot.step.roster import Groups
from ingot.storage.counts import step_count

EVERY = Rule(
    "interval",
    lambda x: isinstance(x, int) and not isinstance(x, bool) and x > 0,
    "None, or a whole number of steps > 0",
)


class Tracker:
    """Tracks the steps of one optimizer.

    Attributes:
        made: how many steps the optimizer has made.
        last: the metrics of the last tracked step.
    """

    def __init__(
        self, every: int, sinks: Sequence[Sink], names: Mapping[int, str], made: int
    ) -> None:
        self.every, self.sinks, self.names, self.made = every, list(sinks), dict(names), made
        self.last = Metrics()

    @property
    def due(self) -> bool:
        """Whether the next step is to be observed."""
        return (self.made + 1) % self.every == 0

    def observation(self) -> Observation | None:
        """The observation of the step to come; None if it is not due."""
        return Observation() if self.due else None

    def made_step(self, observation: Observation | None, groups: Groups) -> None:
        """Count a step that was made, and hand on what was seen of it."""
        self.made += 1
        if observation is None:
            return
        found = observation.found
        clips = [each["clip_coefficient"] for each in found.values() if "clip_coefficient" in each]
        names = distinct_names(self.names, groups)
        # As they were named, then as they stand in groups.
        order = dict.fromkeys([*self.names, *sorted(found)])
        self.last = Metrics(
            {names[each]: found[each] for each in order if each in found},
            self.made,
            observation.total_norm,
            min(clips, default=None),
        )
        for sink in self.sinks:
            sink(self.last)

    def recount(self, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> None:
        """Go on counting from a state that was loaded."""
        self.made = steps_made("track_metrics", params, state) or self.made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracker:
        """A copy of an optimizer goes on tracking, into the same sinks."""
        copy = Tracker(self.every, self.sinks, self.names, self.made)
        copy.last = deepcopy(self.last, memo)
        return copy

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Not pickled: files, callbacks and writers belong to a run, not to a checkpoint."""
        return type(None), ()


def steps_made(where: str, params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> int:
    """The largest step count in the states of some parameters; 0 where none is kept."""
    counts = [0]
    for ordinal, param in enumerate(params):
        slots = state.get(param)
        if isinstance(slots, Mapping) and "step" in slots:
            counts.append(step_count(f"{where}: the state of parameter {ordinal}", slots["step"]))
    return max(counts)
