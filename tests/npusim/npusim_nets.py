"""A small network and a question, shared by tests of the simulated NPU."""

import torch
from torch import nn


def is_on_npu(*tensors: torch.Tensor) -> bool:
    return {t.device for t in tensors} == {torch.device("npu", 0)}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
