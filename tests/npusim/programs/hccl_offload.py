"""DDP with the states in host memory, on two processes: prints parameters, by the way gradients are averaged."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ingot


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def train(way: str, device: torch.device) -> list[list[float]]:
    """Three steps; gradients are averaged by DDP or, after backward, in place."""
    net = make_net().to(device)
    views = way == "ddp with views"
    whole = DistributedDataParallel(net, gradient_as_bucket_view=views) if "ddp" in way else net
    optimizer = ingot.AdamW(net.parameters(), lr=1e-2, offload="cpu")
    for step in range(3):
        optimizer.zero_grad()
        whole(batch(step, dist.get_rank()).to(device)).square().mean().backward()
        if way == "by hand":
            for param in net.parameters():
                dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
    assert all(s["exp_avg"].device.type == "cpu" for s in optimizer.state.values())
    return [param.detach().cpu().flatten().tolist() for param in net.parameters()]


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local_rank)
    dist.init_process_group("hccl")
    device = torch.device("npu", local_rank)
    result = {way: train(way, device) for way in ("ddp", "ddp with views", "by hand")}
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
