"""Trains a small image classifier the way scripts for Ascend NPUs do; see docs/npusim.md.

With an NPU:     python examples/ascend_training.py
Without one:     python -m ingot.npusim examples/ascend_training.py
Save, go on:     ... --save checkpoint.pt     then     ... --resume checkpoint.pt
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch_npu
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_npu.npu.amp import GradScaler, autocast

OPTIONS: dict[str, dict[str, Any]] = {
    "NpuFusedAdamW": {"lr": 5e-3, "weight_decay": 0.05},
    "NpuFusedSGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
    "NpuFusedLamb": {"lr": 0.02, "eps": 1e-5, "weight_decay": 0.01},
    "NpuFusedAdamP": {"lr": 5e-3, "weight_decay": 0.05},
    "NpuFusedBertAdam": {"lr": 0.01, "warmup": 0.05, "t_total": 100, "max_grad_norm": -1},
    "NpuFusedAdam": {"lr": 5e-3, "weight_decay": 1e-3},
    "NpuFusedAdadelta": {"lr": 3.0},
    "NpuFusedRMSprop": {"lr": 2e-3, "momentum": 0.5},
    "NpuFusedRMSpropTF": {"lr": 5e-3, "alpha": 0.9, "eps": 1e-3},
}


def make_data(batch_size: int = 16) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Returns 8 batches of 8x8 images: a bright corner says which of four classes it is."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (8 * batch_size,), generator=generator)
    images = torch.randn(len(labels), 1, 8, 8, generator=generator)
    for corner in range(4):
        top, left = 4 * (corner // 2), 4 * (corner % 2)
        images[labels == corner, :, top : top + 4, left : left + 4] += 1.0
    return DataLoader(TensorDataset(images, labels), batch_size, pin_memory=True)


def make_model() -> nn.Module:
    """Returns the network, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 4),
    )


def train(
    device: str,
    optimizer_name: str,
    scaler: Any,
    mixed: Callable[[], AbstractContextManager[Any]],
    steps: int,
    resume: str | None = None,
    save: str | None = None,
) -> list[float]:
    """Trains and returns the loss of every step.

    Args:
        device: where to train.
        optimizer_name: a class of torch_npu.optim.
        scaler: the gradient scaler.
        mixed: makes the context the forward pass runs in.
        steps: how many steps to make.
        resume: a checkpoint to go on from.
        save: where to write a checkpoint at the end.
    """
    model = make_model().to(device)
    optimizer_class = getattr(torch_npu.optim, optimizer_name)
    optimizer = optimizer_class(model.parameters(), **OPTIONS[optimizer_name])
    done = 0
    if resume is not None:
        checkpoint = torch.load(resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        done = checkpoint["done"]
    batches = list(make_data())
    losses = []
    for step in range(done, done + steps):
        images, labels = (tensor.to(device, non_blocking=True) for tensor in batches[step % 8])
        optimizer.zero_grad()
        with mixed():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm_fused_(1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    if save is not None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "done": done + steps,
        }
        torch.save(state, save)
    return losses


def main() -> None:
    """Reads the command line, trains, prints the losses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--optimizer", choices=OPTIONS, default="NpuFusedAdamW")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--static", action="store_true", help="a loss scale that stays the same")
    parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
    parser.add_argument("--save", metavar="FILE", help="write a checkpoint at the end")
    args = parser.parse_args()
    torch.npu.set_device(0)
    print(f"training on {torch.npu.get_device_name(0)}")
    scaler = GradScaler(init_scale=1024.0, dynamic=not args.static)
    losses = train("npu:0", args.optimizer, scaler, autocast, args.steps, args.resume, args.save)
    for step, loss in enumerate(losses, 1):
        if step % 10 == 0 or step == len(losses):
            print(f"step {step:3}  loss {loss:.4f}")


if __name__ == "__main__":
    main()
