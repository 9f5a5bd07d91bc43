"""The options about precision: in which type parameters are computed, and in which format their states are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.declare.options import FLAG, Rule
from ingot.storage.floats import floats
from ingot.storage.format import Format
from ingot.storage.rounding import HALVES

SUPPORTED = (torch.float32, *HALVES, torch.float64, torch.complex64, torch.complex128)
STATE_DTYPES = (None, "param", torch.float32, *HALVES)
ROUNDINGS = ("nearest", "stochastic")

RULES = {
    "state_dtype": Rule(
        "state_dtype", lambda x: x in STATE_DTYPES, f"one of {', '.join(map(repr, STATE_DTYPES))}"
    ),
    "master_weights": FLAG,
    "rounding": Rule("rounding", lambda x: x in ROUNDINGS, "'nearest' or 'stochastic'"),
}
SEED = Rule(
    "rounding_seed",
    lambda x: isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 64,
    "an integer >= 0 and < 2**64",
)


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type the math runs in: float32, float64 for float64."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


@dataclass(frozen=True)
class Precision:
    """The precision options of one optimizer, checked by ``RULES``.

    Attributes:
        state_dtype: None for the type of the math, "param" for the parameter's own, float32 or a 16-bit type.
        master_weights: keep a float32 copy of 16-bit parameters in the state.
        rounding: "nearest" or "stochastic", for what is stored in 16 bits.
    """

    state_dtype: torch.dtype | str | None = None
    master_weights: bool = False
    rounding: str = "nearest"

    def format(self, param: Tensor) -> Format:
        """How the states of a parameter are kept; raises ValueError if the option cannot be honoured."""
        return floats(self.stored(param.dtype))

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """The type of the states of a parameter of type ``dtype``; raises if the option cannot be honoured."""
        own = dtype if dtype.is_complex or dtype is torch.float64 else torch.float32
        if self.state_dtype is None:
            return own
        if self.state_dtype == "param":
            return dtype
        if own is torch.float32:
            assert isinstance(self.state_dtype, torch.dtype)
            return self.state_dtype
        if own is torch.complex64 and self.state_dtype is torch.float32:
            return own  # pairs of float32
        raise ValueError(
            f"state_dtype={self.state_dtype!r} cannot be kept for a {dtype} parameter; allowed there "
            "are None and 'param'"
        )

    def master(self, dtype: torch.dtype) -> bool:
        """Whether a parameter of type ``dtype`` gets a float32 master copy; a wider one is its own."""
        return self.master_weights and dtype in HALVES

    def stochastic(self, param: Tensor) -> bool:
        """Whether anything of a parameter is rounded stochastically.

        A parameter with a master copy is not: the master keeps all digits, and the next step starts from it.
        """
        if self.rounding == "nearest":
            return False
        return self.format(param).rounds or (param.dtype in HALVES and not self.master_weights)
