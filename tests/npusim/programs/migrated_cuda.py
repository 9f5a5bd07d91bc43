"""A training script written for CUDA: DDP, gradient scaling, checkpoints. Two lines were added for Ascend.

Run by torchrun; prints the losses of rank 0 as JSON, and what it saw of the device.
"""

# ruff: noqa: I001
import argparse
import json
import os
import warnings

import torch
import torch_npu  # the first added line
from torch_npu.contrib import transfer_to_npu  # the second one  # noqa: F401
import torch.distributed as dist
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore")


def make_loader(rank: int, world_size: int) -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(64, 8, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    sampler = torch.utils.data.DistributedSampler(data, world_size, rank, shuffle=True, seed=5)
    return torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--precision", choices=["float16", "float32"], default="float16")
    args = parser.parse_args()

    assert torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank)

    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)).cuda()
    net = DistributedDataParallel(net, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch_npu.optim.NpuFusedAdamW(net.parameters(), lr=1e-2)
    scaler = GradScaler(enabled=args.precision == "float16")
    first = 0
    if args.resume:
        saved = torch.load(args.checkpoint, map_location=f"cuda:{local_rank}")
        net.module.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        first = saved["epoch"] + 1

    losses = []
    loader = make_loader(rank, world_size)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for epoch in range(first, args.epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs = inputs.cuda(non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with autocast(enabled=args.precision == "float16"):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(total.item() / world_size)
        if args.checkpoint and rank == 0 and not args.resume and epoch == 0:
            state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "scaler": scaler.state_dict(), "epoch": epoch}, args.checkpoint)
        dist.barrier()
    end.record()
    torch.cuda.synchronize()

    sums = torch.stack([param.detach().double().sum() for param in net.parameters()]).float()
    everyone = [torch.empty_like(sums) for _ in range(world_size)]
    dist.all_gather(everyone, sums)
    if rank == 0:
        seen = {
            "losses": losses,
            "devices": sorted({str(param.device) for param in net.parameters()}),
            "backend": dist.get_backend(),
            "agree": all(other.equal(sums) for other in everyone),
            "is_cuda": inputs.is_cuda,
            "peak": torch.cuda.max_memory_allocated(device) > 0,
            "milliseconds": start.elapsed_time(end) > 0,
            "name": torch.cuda.get_device_name(local_rank),
        }
        print(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
