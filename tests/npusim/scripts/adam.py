"""Calls NpuFusedAdam as a script for Ascend does, some steps."""

import torch
from parameters import make_params, report
from torch_npu.npu.amp import GradScaler, autocast  # noqa: F401
from torch_npu.optim import NpuFusedAdam

options = dict(lr=0.02, weight_decay=0.01)
params = make_params()
optimizer = NpuFusedAdam(params, **options)
with torch.no_grad():
    for _ in range(4):
        optimizer.step()
report(params)
