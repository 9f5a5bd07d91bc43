"""Trains a small transformer with FSDP2; may be killed at any time and resumed on any number of processes.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2_train.py --steps 60

It learns the bytes of this repository's LICENSE. A batch depends on the step only, and each process takes its share of
it, so the losses are those of one process, whatever the number of processes. Every --save-every steps a checkpoint is
written beside the last one and renamed when it is complete; a start takes the newest complete one.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from ingot import optim

TEXT = Path(__file__).parent.parent / "LICENSE"
CONTEXT, BATCH = 32, 16
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "NpuFusedAdamW": {"lr": 3e-3, "max_grad_norm": 1.0},
    "NpuFusedSGD": {"lr": 0.1, "momentum": 0.9, "max_grad_norm": 1.0},
    "NpuFusedLamb": {"lr": 1e-2, "use_global_grad_norm": True},
    "NpuFusedAdamP": {"lr": 3e-3, "weight_decay": 0.01, "max_grad_norm": 1.0},
    "NpuFusedBertAdam": {"lr": 3e-3, "warmup": 0.1, "t_total": 200},
}


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape [batch, time, width]."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, time] bytes to [batch, time, 256] logits."""
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(text: Tensor, step: int, rank: int, processes: int) -> tuple[Tensor, Tensor]:
    """This process's share of the samples of a step, and the bytes that follow."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    mine = starts.chunk(processes)[rank]
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in mine])
    return windows[:, :-1], windows[:, 1:]


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint under another name; only a complete one gets its own."""
    states, optimizer_states = get_state_dict(model, optimizer)
    unfinished = folder / f"unfinished-{step}"
    dcp.save({"model": states, "optimizer": optimizer_states}, checkpoint_id=unfinished)
    dist.barrier()
    if dist.get_rank() == 0:
        unfinished.rename(folder / f"step-{step}")
        for old in complete(folder)[:-2]:
            shutil.rmtree(old)


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest complete checkpoint, whatever number of processes wrote it; the steps that are done."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob("unfinished-*"):
            shutil.rmtree(left_over)
    dist.barrier()
    found = complete(folder)
    if not found:
        return 0
    states, optimizer_states = get_state_dict(model, optimizer)
    together = {"model": states, "optimizer": optimizer_states}
    dcp.load(together, checkpoint_id=found[-1])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=together["model"],
        optim_state_dict=together["optimizer"],
    )
    return int(found[-1].name.removeprefix("step-"))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("out/fsdp2_train"))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="NpuFusedLamb")
    arguments = parser.parse_args()
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="localhost", MASTER_PORT=0).items():
        os.environ.setdefault(name, str(value))  # one process, without torchrun
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    if BATCH % processes:
        parser.error(f"{processes} processes cannot share {BATCH} samples equally")

    torch.manual_seed(0)
    model = Transformer()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = getattr(optim, arguments.optimizer)(
        model.parameters(), **OPTIMIZERS[arguments.optimizer]
    )
    first = resume(arguments.folder, model, optimizer)
    print(f"process {rank} of {processes}, pid {os.getpid()}, {first} steps are done", flush=True)

    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    for step in range(first + 1, arguments.steps + 1):
        tokens, targets = batch(text, step, rank, processes)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / processes
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item():.9g}", flush=True)
        if step % arguments.save_every == 0:
            save(arguments.folder, step, model, optimizer)
    # Gloo's threads let go of a collective's tensors a little later than it ends; if Python is gone by then, they abort
    # the process. A barrier has no tensors of Python's.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
