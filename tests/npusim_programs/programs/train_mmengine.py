"""Trains a tiny network with MMEngine's Runner and the optimizers it finds; prints JSON.

Usage: train_mmengine.py FOLDER OPTIMIZER[,OPTIMIZER...] [WRAPPER]. Each is trained for four epochs, then
again from the checkpoint after the second.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim.optimizer.builder import NPU_OPTIMIZERS
from mmengine.registry import MODELS, OPTIMIZERS
from mmengine.runner import Runner
from torch import nn

warnings.filterwarnings("ignore")
# MMEngine 0.10.7 keeps objects of its own in checkpoints, which torch.load has refused since 2.6.
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

# Larger steps than the others: SGD does not divide by a root of squares, Adadelta's rate is 1 by default.
RATES = {"NpuFusedSGD": 0.2, "SGD": 0.2, "NpuFusedAdadelta": 1.0}


@MODELS.register_module()
class Net(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> Any:
        outputs = self.second(self.first(inputs).relu())
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(outputs, labels)}
        return outputs


class Losses(Hook):
    def __init__(self) -> None:
        self.values: list[float] = []

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.values.append(float(outputs["loss"]))


def train(folder: Path, name: str, wrapper: str, resume: bool) -> tuple[list[float], Runner]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=generator)
    labels = (inputs.sum(1) > 0).long()
    torch.manual_seed(0)
    losses = Losses()
    runner = Runner(
        model={"type": "Net"},
        work_dir=str(folder),
        train_dataloader={
            "batch_size": 16,
            "sampler": {"type": "DefaultSampler", "shuffle": True},
            "dataset": list(zip(inputs, labels, strict=True)),
            "collate_fn": {"type": "default_collate"},
        },
        train_cfg={"by_epoch": True, "max_epochs": 4},
        optim_wrapper={
            "type": wrapper,
            "optimizer": {"type": name, "lr": RATES.get(name, 0.01)},
            "clip_grad": {"max_norm": 1.0},
        },
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 2}},
        custom_hooks=[losses],
        randomness={"seed": 0},
        log_level="ERROR",
        experiment_name=f"{name}-{wrapper}-{resume}",
        load_from=str(folder / "epoch_2.pth") if resume else None,
        resume=resume,
    )
    runner.train()
    return losses.values, runner


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2].split(",")
    wrapper = sys.argv[3] if len(sys.argv) > 3 else "OptimWrapper"
    found = {"device": get_device(), "registered": list(NPU_OPTIMIZERS), "runs": {}}
    for name in NPU_OPTIMIZERS if names == ["all"] else names:
        whole, runner = train(folder / name, name, wrapper, resume=False)
        rest, again = train(folder / name, name, wrapper, resume=True)
        pairs = zip(runner.model.parameters(), again.model.parameters(), strict=True)
        optimizer = type(runner.optim_wrapper.optimizer)
        found["runs"][name] = {
            "losses": whole,
            "class": f"{optimizer.__module__}.{optimizer.__qualname__}",
            "is_registered": OPTIMIZERS.get(name) is optimizer,
            "devices": sorted({str(p.device) for p in runner.model.parameters()}),
            "resumed": rest == whole[len(whole) // 2 :] and all(a.equal(b) for a, b in pairs),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
