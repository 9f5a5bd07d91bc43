"""The optimizers, under the names of torch_npu.optim."""

from ingot.optim.adadelta import NpuFusedAdadelta
from ingot.optim.adam import NpuFusedAdam
from ingot.optim.adamp import NpuFusedAdamP
from ingot.optim.adamw import NpuFusedAdamW
from ingot.optim.bert_adam import NpuFusedBertAdam
from ingot.optim.lamb import NpuFusedLamb
from ingot.optim.rmsprop import NpuFusedRMSprop
from ingot.optim.rmsprop_tf import NpuFusedRMSpropTF
from ingot.optim.sgd import NpuFusedSGD

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]
