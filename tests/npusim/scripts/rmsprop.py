"""Calls NpuFusedRMSprop as a script for Ascend does, some steps."""

import torch
from parameters import make_params, report
from torch_npu.npu.amp import GradScaler, autocast  # noqa: F401
from torch_npu.optim import NpuFusedRMSprop

options = dict(lr=0.01, momentum=0.5, centered=True)
params = make_params()
optimizer = NpuFusedRMSprop(params, **options)
with torch.no_grad():
    for _ in range(4):
        optimizer.step()
report(params)
