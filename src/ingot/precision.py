"""In which type parameters are computed and their states are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MASTER = "master_param"  # the name of the float32 copy among the states
HALVES = (torch.float16, torch.bfloat16)
SUPPORTED = (torch.float32, *HALVES, torch.float64, torch.complex64, torch.complex128)


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type the math runs in: float32, float64 for float64."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


@dataclass(frozen=True)
class Precision:
    """The precision options of one optimizer.

    Attributes:
        state_dtype: None for the type of the math, "param" for the parameter's own, or a 16-bit type.
        master_weights: keep a float32 copy of 16-bit parameters in the state.
        rounding: "nearest" or "stochastic", for what is stored in 16 bits.
        seed: of the stochastic rounding.
    """

    state_dtype: torch.dtype | str | None = None
    master_weights: bool = False
    rounding: str = "nearest"
    seed: int = 0

    def __post_init__(self) -> None:
        choices = (None, "param", torch.float32, *HALVES)
        if self.state_dtype not in choices:
            raise ValueError(f"state_dtype={self.state_dtype!r} must be one of {choices}")
        if self.rounding not in ("nearest", "stochastic"):
            raise ValueError(f"rounding={self.rounding!r} must be 'nearest' or 'stochastic'")
        if self.master_weights not in (True, False):
            raise ValueError(f"master_weights={self.master_weights!r} must be True or False")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"rounding_seed={self.seed!r} must be an integer")

    def stored(self, dtype: torch.dtype) -> torch.dtype:
        """The type of the states of a parameter of type ``dtype``."""
        if dtype.is_complex or dtype is torch.float64 or self.state_dtype == "param":
            return dtype
        return self.state_dtype if isinstance(self.state_dtype, torch.dtype) else torch.float32

    def master(self, dtype: torch.dtype) -> bool:
        """Whether a parameter of type ``dtype`` gets a float32 master copy."""
        return self.master_weights and dtype in HALVES
