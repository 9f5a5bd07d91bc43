"""What an optimizer keeps between its steps, and how the next one is planned: the part of it that users do not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ingot.declare.options import Rule
from ingot.declare.spec import Spec
from ingot.reductions.norms import Whole
from ingot.step.bucket import Bucket
from ingot.step.plan import Planner
from ingot.step.quick import Quick
from ingot.storage.offload import Offload
from ingot.storage.precision import Precision

if TYPE_CHECKING:
    from ingot.metrics.track import Tracker
    from ingot.step.in_backward import ReleasedGradients


class Planned(torch.optim.Optimizer):
    """An optimizer whose steps are planned."""

    spec: ClassVar[Spec]
    backend: str | None
    precision: Precision
    # A process group, where its other members have other parameters of the same model in optimizers of their own
    # (ZeroRedundancyOptimizer, pipeline stages): gradients are then clipped by the norm over all of them.
    norm_group: Any = None
    _released: ReleasedGradients | None = None  # what release_gradients() returned
    _tracker: Tracker | None = None  # what ``track_metrics`` has switched on

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        """Raise ValueError for options that are not allowed."""

    @classmethod
    def all_rules(cls) -> Mapping[str, Rule]:
        """The rules of all options a parameter group has; nothing else in a group decides about a step."""
        return {}

    def _refresh(self) -> None:
        """Forget everything that was derived from the state."""
        if self.precision.offload is None:
            self._offload: Offload | None = None
        else:  # its hooks are on the parameters, and copies may be under way: it outlives the state
            self._offload = vars(self).get("_offload") or Offload()
        self._planner = Planner(type(self).__name__, self.spec, self.check, self._offload)
        self._quick: Quick | None = None
        self._grad_norm: Tensor | tuple[Tensor | float, torch.dtype] | None = None

    def _everything(self) -> Whole:
        """All parameters, with whom they are shared: for norms and sums over the whole optimizer."""
        roster, params = self._planner.refresh(self.param_groups)
        if roster.sharded or self.norm_group is not None:
            roster.find_home(params)
        return Whole(roster, params, self.norm_group)

    def _plan(
        self, chosen: Sequence[int] | None = None, everything: Whole | None = None
    ) -> list[Bucket]:
        """The buckets of a step over the parameters with these ordinals; None for all."""
        roster, params, _ = everything or self._everything()
        groups, state = self.param_groups, self.state
        return self._planner.plan(
            roster, params, groups, state, self.precision, self.backend, chosen
        )
