"""What an optimizer does to every parameter, seen from outside: norms, ratios, and where they go."""

from ingot.metrics.record import Metrics as Metrics
from ingot.metrics.sinks import read as read

__all__ = ["Metrics", "read"]
