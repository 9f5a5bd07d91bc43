"""The optimizers, under the names of torch_npu.optim and under short ones: AdamW is NpuFusedAdamW."""

from typing import TYPE_CHECKING

from ingot.optim.adamp import NpuFusedAdamP
from ingot.optim.adamw import NpuFusedAdamW
from ingot.optim.bert_adam import NpuFusedBertAdam
from ingot.optim.lamb import NpuFusedLamb
from ingot.optim.sgd import NpuFusedSGD

if TYPE_CHECKING:
    from ingot.base import FusedOptimizer

    # Type checkers and editors do not see what the last lines make. A test compares the two.
    AdamP = NpuFusedAdamP
    AdamW = NpuFusedAdamW
    BertAdam = NpuFusedBertAdam
    Lamb = NpuFusedLamb
    SGD = NpuFusedSGD

__all__ = ["NpuFusedAdamP", "NpuFusedAdamW", "NpuFusedBertAdam", "NpuFusedLamb", "NpuFusedSGD"]

# Every class by its short name, then by its long one. The short ones are not in __all__: a star import must not
# take the place of torch's SGD or AdamW, and torch_npu.optim, which npusim stands in for, does not have them.
_LONG: "dict[str, type[FusedOptimizer]]" = {name: globals()[name] for name in __all__}
_SHORT = {name.removeprefix("NpuFused"): optimizer for name, optimizer in _LONG.items()}
CLASSES = {**_SHORT, **_LONG}
globals().update(_SHORT)
