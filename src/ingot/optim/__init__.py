"""The optimizers, under the names of torch_npu.optim."""

from ingot.optim.adamp import NpuFusedAdamP
from ingot.optim.adamw import NpuFusedAdamW
from ingot.optim.bert_adam import NpuFusedBertAdam
from ingot.optim.lamb import NpuFusedLamb
from ingot.optim.sgd import NpuFusedSGD

__all__ = ["NpuFusedAdamP", "NpuFusedAdamW", "NpuFusedBertAdam", "NpuFusedLamb", "NpuFusedSGD"]
