"""The float32 copy of a 16-bit parameter, from which its steps go on."""

from __future__ import annotations

import torch
from torch import Tensor

NAME = "master_param"  # of the copy, among the states


def adopted(param: Tensor, master: Tensor) -> Tensor:
    """The values a step starts from: the master copy, but the parameter wins where somebody changed it.

    Both are given in any type; a parameter that is its rounded master has not been touched since the last step.
    """
    return torch.where(master.to(param.dtype) == param, master, param)
