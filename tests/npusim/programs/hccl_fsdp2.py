"""FSDP2 as Ascend scripts write it, on two processes: prints losses and the whole parameters as JSON."""

import json
import os

import torch
import torch.distributed as dist
import torch_npu
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local_rank)
    dist.init_process_group("hccl")
    mesh = init_device_mesh("npu", (dist.get_world_size(),))
    device = torch.device("npu", local_rank)
    result = {}
    for precision in ("float32", "bfloat16"):
        net = make_net().to(device)
        policy = MixedPrecisionPolicy(
            param_dtype=getattr(torch, precision), reduce_dtype=torch.float32
        )
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        optimizer = torch_npu.optim.NpuFusedAdamW(net.parameters(), lr=1e-2)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = net(batch(step, dist.get_rank()).to(device)).float().square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            losses.append(loss.item())
        whole, _ = get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=True))
        params = {
            name: value.full_tensor().tolist() if hasattr(value, "full_tensor") else value.tolist()
            for name, value in whole.items()
        }
        result[precision] = {"losses": losses, "params": params}
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
