"""Calls NpuFusedAdamW as its document does, some steps more."""

import torch
from parameters import make_params, report
from torch_npu.npu.amp import GradScaler, autocast  # noqa: F401
from torch_npu.optim import NpuFusedAdamW

options = dict(lr=3e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
params = make_params()
optimizer = NpuFusedAdamW(params, **options)
with torch.no_grad():
    for _ in range(4):
        optimizer.step()
report(params)
