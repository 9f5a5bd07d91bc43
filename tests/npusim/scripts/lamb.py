"""Calls NpuFusedLamb as its document does, some steps more."""

import torch
from parameters import make_params, report
from torch_npu.npu.amp import GradScaler, autocast  # noqa: F401
from torch_npu.optim import NpuFusedLamb

options = dict(lr=0.02, eps=1e-5)
params = make_params()
optimizer = NpuFusedLamb(params, **options)
with torch.no_grad():
    for _ in range(4):
        optimizer.step()
report(params)
