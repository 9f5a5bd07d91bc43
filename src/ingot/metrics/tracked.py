"""What an optimizer offers its users for watching it: ``track_metrics`` and ``metrics``."""

from __future__ import annotations

from ingot.metrics.names import Names, given_names
from ingot.metrics.record import Metrics
from ingot.metrics.sinks import Target, sinks_of
from ingot.metrics.track import EVERY, Tracker, steps_made
from ingot.step.planned import Planned
from ingot.step.release_refusals import TRACKED
from ingot.step.roster import all_params


class Tracked(Planned):
    """An optimizer whose steps can be watched. While nothing is tracked, ``_tracker`` is None."""

    def track_metrics(
        self, every: int | None = 50, to: Target = None, *, names: Names | None = None
    ) -> None:
        """Measure what every ``every``-th step does to each parameter.

        :meth:`metrics` has the last one; :class:`ingot.metrics.Metrics` says what each number means. Steps in
        between cost nothing more. A tracked step has the same result as any other. It keeps a copy of the parameters
        while it runs. Where processes share parameters, all of them must track the same steps.

        Args:
            every: track steps ``every``, ``2 * every`` and so on (default 50); None to stop. Steps are counted on
                from the step counts in the state.
            to: where metrics go beside :meth:`metrics`: the path of a .jsonl or .csv file, which is appended to; a
                ``SummaryWriter`` of TensorBoard; a dict, filled by step; a function that takes
                :class:`ingot.metrics.Metrics`; or a list of these.
            names: a model, or pairs of a name and a parameter (default None: the names the optimizer was made with).
                Metrics are listed in their order. Parameters of the same name in two groups are told apart by these:
                ``group1.weight``.

        Example:
            >>> import ingot, torch
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = ingot.AdamW(model.named_parameters())
            >>> optimizer.track_metrics(every=1)
            >>> model(torch.ones(1, 3)).sum().backward()
            >>> optimizer.step()
            >>> list(optimizer.metrics())
            ['weight', 'bias']
        """
        owner = f"{type(self).__name__}.track_metrics"
        if every is None:
            self._tracker = None
            return
        EVERY.check(owner, "every", every)
        if self._released is not None:
            raise RuntimeError(f"{owner}: {TRACKED}")
        params = all_params(self.param_groups)
        found, made = given_names(owner, params, names), steps_made(owner, params, self.state)
        self._tracker = Tracker(every, sinks_of(owner, to), found, made)

    def metrics(self) -> Metrics:
        """What the last tracked step did, by parameter name; empty before the first one.

        Raises RuntimeError unless :meth:`track_metrics` was called.
        """
        if self._tracker is None:
            raise RuntimeError(f"{type(self).__name__}.metrics: call track_metrics() first")
        return self._tracker.last
