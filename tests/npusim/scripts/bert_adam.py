"""Calls NpuFusedBertAdam as its document does, some steps more."""

import torch
from parameters import make_params, report
from torch_npu.npu.amp import GradScaler, autocast  # noqa: F401
from torch_npu.optim import NpuFusedBertAdam

options = dict(lr=0.02, warmup=0.2, t_total=10, max_grad_norm=-1)
params = make_params()
optimizer = NpuFusedBertAdam(params, **options)
with torch.no_grad():
    for _ in range(4):
        optimizer.step()
report(params)
