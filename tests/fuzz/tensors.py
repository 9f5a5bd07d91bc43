"""Tensors as the numbers that the formulas compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzz.bounds import DOUBLE, SINGLE, Bounded


def array(tensor: Tensor) -> Any:
    """The values, exactly; complex numbers as pairs."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.double().numpy().astype(np.longdouble)


def unit_of(dtype: torch.dtype) -> float:
    return DOUBLE if dtype in (torch.float64, torch.complex128) else SINGLE


def loaded(tensor: Tensor, unit: float) -> Bounded:
    """A tensor as the math reads it; one of a wider type is rounded."""
    value = Bounded(array(tensor), 0.0, unit_of(tensor.dtype))
    return value.to(unit)
