"""The optimizers, under the names of torch_npu.optim and under short ones: AdamW is NpuFusedAdamW."""

from typing import TYPE_CHECKING

from ingot.optim.adadelta import NpuFusedAdadelta
from ingot.optim.adam import NpuFusedAdam
from ingot.optim.adamp import NpuFusedAdamP
from ingot.optim.adamw import NpuFusedAdamW
from ingot.optim.bert_adam import NpuFusedBertAdam
from ingot.optim.lamb import NpuFusedLamb
from ingot.optim.rmsprop import NpuFusedRMSprop
from ingot.optim.rmsprop_tf import NpuFusedRMSpropTF
from ingot.optim.sgd import NpuFusedSGD

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

    # Type checkers and editors do not see what the last lines make. A test compares the two.
    Adadelta = NpuFusedAdadelta
    Adam = NpuFusedAdam
    AdamP = NpuFusedAdamP
    AdamW = NpuFusedAdamW
    BertAdam = NpuFusedBertAdam
    Lamb = NpuFusedLamb
    RMSprop = NpuFusedRMSprop
    RMSpropTF = NpuFusedRMSpropTF
    SGD = NpuFusedSGD

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

# Every class by its short name, then by its long one. The short ones are not in __all__: a star import must not
# take the place of torch's SGD or AdamW, and torch_npu.optim, which npusim stands in for, does not have them.
_LONG: "dict[str, type[FusedOptimizer]]" = {name: globals()[name] for name in __all__}
_SHORT = {name.removeprefix("NpuFused"): optimizer for name, optimizer in _LONG.items()}
CLASSES = {**_SHORT, **_LONG}
globals().update(_SHORT)
