"""The options about how numbers are kept: in which type parameters are computed, how states are kept, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ingot.declare.options import FLAG, Rule
from ingot.declare.spec import State
from ingot.storage import blockwise8
from ingot.storage.floats import floats
from ingot.storage.format import Format
from ingot.storage.offload import OFFLOAD, is_away
from ingot.storage.rounding import HALVES
from ingot.storage.transfer import HOST

SUPPORTED = (torch.float32, *HALVES, torch.float64, torch.complex64, torch.complex128)
EIGHT_BIT = "8bit"
STATE_DTYPES = (None, "param", torch.float32, *HALVES, EIGHT_BIT)
ROUNDINGS = ("nearest", "stochastic")

RULES = {
    "state_dtype": Rule(
        "state_dtype", lambda x: x in STATE_DTYPES, f"one of {', '.join(map(repr, STATE_DTYPES))}"
    ),
    "master_weights": FLAG,
    "rounding": Rule("rounding", lambda x: x in ROUNDINGS, "'nearest' or 'stochastic'"),
    "offload": OFFLOAD,
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
        state_dtype: None for the type of the math, "param" for the parameter's own, float32, a 16-bit type, or
            "8bit" for blocks of 8-bit codes, see ``ingot.storage.blockwise8``.
        master_weights: keep a float32 copy of 16-bit parameters in the state.
        rounding: "nearest" or "stochastic", for what is stored in 16 or 8 bits.
        offload: "cpu" to keep the states of parameters on accelerators in host memory.
    """

    state_dtype: torch.dtype | str | None = None
    master_weights: bool = False
    rounding: str = "nearest"
    offload: str | None = None

    def described(self, dtype: torch.dtype) -> str:
        """How the states of a parameter of type ``dtype`` are kept, in words."""
        blocks = self.state_dtype == EIGHT_BIT
        words = ["8-bit blocks" if blocks else str(self.wide(dtype)).removeprefix("torch.")]
        words += ["float32 master weights"] * self.master_weights
        words += [f"rounded {self.rounding}"] * (self.rounding != "nearest")
        words += ["in host memory"] * (self.offload is not None)
        return ", ".join(words)

    def format(self, param: Tensor, state: State) -> Format:
        """How a state of a parameter is kept; raises ValueError if the option cannot be honoured."""
        if self.in_blocks(param):
            return blockwise8.SIGNED if state.signed else blockwise8.UNSIGNED
        return floats(self.wide(param.dtype))

    def in_blocks(self, param: Tensor) -> bool:
        """Whether the states of a parameter are kept as 8-bit codes; the size of a DTensor is that of the whole."""
        wide = self.wide(param.dtype)  # raises for the types whose states cannot be
        return self.state_dtype == EIGHT_BIT and (
            wide is torch.float32 and param.numel() >= blockwise8.FEWEST
        )

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The type of states kept as numbers, of a parameter of type ``dtype``; raises if they cannot be."""
        own = dtype if dtype.is_complex or dtype is torch.float64 else torch.float32
        if self.state_dtype is None:
            return own
        if self.state_dtype == "param":
            return dtype
        if own is torch.float32:
            return self.state_dtype if isinstance(self.state_dtype, torch.dtype) else own
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
        narrow = self.in_blocks(param) or self.wide(param.dtype) in HALVES
        return narrow or (param.dtype in HALVES and not self.master_weights)

    def counts(self, params: Iterable[Tensor]) -> bool:
        """Whether these parameters of an optimizer have step counts because random bits are made of them.

        All have one if something of any is rounded: checkpoints of torch.distributed hold states of all or of none.
        """
        return self.rounding != "nearest" and any(map(self.stochastic, params))

    def home(self, param: Tensor) -> torch.device:
        """The device on which the states of a parameter are kept."""
        return HOST if self.offload and is_away(param) else param.device
