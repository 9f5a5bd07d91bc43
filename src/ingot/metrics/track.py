"""Decides which steps are observed, gives parameters their names, and hands the metrics to their sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.nn import Module

from ingot.declare.options import Rule
from ingot.metrics.observe import Observation
from ingot.metrics.record import Metrics
from ingot.metrics.sinks import Sink
from ingot.step.roster import Groups, Roster

Names = Module | Iterable[tuple[str, Tensor]]
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

    def made_step(self, observation: Observation | None, roster: Roster, groups: Groups) -> None:
        """Count a step that was made, and hand on what was seen of it."""
        self.made += 1
        if observation is None:
            return
        found = observation.found
        clips = [each["clip_coefficient"] for each in found.values() if "clip_coefficient" in each]
        order = dict.fromkeys(
            [*self.names, *sorted(found)]
        )  # as they were named, then as they stand in groups
        self.last = Metrics(
            {self._name(each, roster, groups): found[each] for each in order if each in found},
            self.made,
            observation.total_norm,
            min(clips, default=None),
        )
        for sink in self.sinks:
            sink(self.last)

    def _name(self, ordinal: int, roster: Roster, groups: Groups) -> str:
        """What a parameter is called: as ``track_metrics`` was told, as in its group, or by its place."""
        if ordinal in self.names:
            return self.names[ordinal]
        place = roster.place(ordinal, groups)
        return place.name or f"group{place.group}[{place.position}]"

    def recount(self, state: Mapping[Tensor, Any]) -> None:
        """Go on counting from a state that was loaded."""
        self.made = steps_made(state) or self.made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracker:
        """A copy of an optimizer goes on tracking, into the same sinks."""
        copy = Tracker(self.every, self.sinks, self.names, self.made)
        copy.last = deepcopy(self.last, memo)
        return copy

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Not pickled: files, callbacks and writers belong to a run, not to a checkpoint."""
        return type(None), ()


def steps_made(state: Mapping[Tensor, Any]) -> int:
    """The largest step count of a state; 0 where none is kept."""
    return max((int(slots.get("step", 0)) for slots in state.values()), default=0)


def names_of(owner: str, params: Sequence[Tensor], names: Names | None) -> dict[int, str]:
    """The names of parameters by their ordinals, in the order in which they were given."""
    if names is None:
        return {}
    ordinals = {id(param): ordinal for ordinal, param in enumerate(params)}
    try:
        pairs = names.named_parameters() if isinstance(names, Module) else names
        return {ordinals[id(param)]: name for name, param in pairs if id(param) in ordinals}
    except (TypeError, ValueError):
        raise TypeError(
            f"{owner}: names must be a torch.nn.Module or pairs of a name and a parameter, such as "
            f"model.named_parameters(); got {type(names).__name__}"
        ) from None
