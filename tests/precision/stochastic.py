"""The options and shapes that the tests of stochastic rounding share."""

from typing import Any

STOCHASTIC: dict[str, Any] = {"rounding": "stochastic", "rounding_seed": 11}
SHAPES = [(7,), (4, 3), (), (33, 31), (65,), (0,), (2, 3, 2, 2)]
