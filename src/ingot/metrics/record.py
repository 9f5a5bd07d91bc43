"""The metrics of one step: a dictionary by parameter name, with what concerns all parameters beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# The order of columns, in tables and files. The last three are there only where the optimizer has them.
PER_PARAMETER = (
    "grad_norm",
    "weight_norm",
    "update_norm",
    "update_ratio",
    "clip_coefficient",
    "trust_ratio",
    "projected_rows",
)


class Metrics(dict[str, dict[str, float]]):
    """What one step did, by parameter name; ``repr`` shows it as a table.

    All norms are 2-norms over the whole tensor, also where several processes hold a part of it each.

    ================== ======================================================================================
    grad_norm          of the gradient, divided by the scale of a GradScaler, before clipping
    weight_norm        of the parameter before the step, of its float32 copy with ``master_weights``
    update_norm        of what the step changed: parameter after minus parameter before, as stored
                       (of the float32 copies with ``master_weights``). Decay, clipping and rounding are in it
    update_ratio       update_norm / weight_norm; 0 where nothing changed, inf where only the weight is 0
    clip_coefficient   what the gradient was multiplied with to clip it; only where the group clips
    trust_ratio        LAMB: the factor of the learning rate, per tensor
    projected_rows     AdamP: the share of rows (indices of dim 0) whose update was projected, 0 to 1
    ================== ======================================================================================

    Attributes:
        step: the number of the step, counted from 1; 0 if there was none yet.
        total_norm: the norm of all gradients together, unscaled, before clipping.
        clip_coefficient: the smallest of the parameters' coefficients; None if no group clips.
    """

    def __init__(
        self,
        parameters: Mapping[str, dict[str, float]] | None = None,
        step: int = 0,
        total_norm: float = 0.0,
        clip_coefficient: float | None = None,
    ) -> None:
        super().__init__(parameters or {})
        self.step, self.total_norm, self.clip_coefficient = step, total_norm, clip_coefficient

    def as_dict(self) -> dict[str, Any]:
        """Everything in one plain dictionary."""
        return {
            "step": self.step,
            "total_norm": self.total_norm,
            "clip_coefficient": self.clip_coefficient,
            "parameters": {name: dict(values) for name, values in self.items()},
        }

    def __repr__(self) -> str:
        if not self:
            return "Metrics: no tracked step yet"
        clip = (
            ""
            if self.clip_coefficient is None
            else f", clip coefficient {self.clip_coefficient:.3g}"
        )
        lines = [f"Metrics of step {self.step}: total norm {self.total_norm:.4g}{clip}"]
        columns = [
            name for name in PER_PARAMETER if any(name in values for values in self.values())
        ]
        width = max(map(len, [*self, "parameter"]))
        lines.append("  ".join(["", "parameter".ljust(width), *columns]))
        for parameter, values in self.items():
            cells = [shown(values.get(name)).rjust(len(name)) for name in columns]
            lines.append("  ".join(["", parameter.ljust(width), *cells]))
        return "\n".join(lines)


def shown(value: float | None) -> str:
    """A number of a table; nothing where there is none."""
    return "" if value is None else f"{value:.3g}"


def ratio(update: float, weight: float) -> float:
    """How large an update is beside its weight."""
    if weight == 0.0:
        return 0.0 if update == 0.0 else math.inf * update
    return update / weight
