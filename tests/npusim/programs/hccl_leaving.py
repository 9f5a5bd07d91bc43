"""Ends without waiting for its last collectives, which rank 1 joins after rank 0 has reached its end."""

import os
import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    for _ in range(200):
        dist.all_reduce(torch.ones(4, device="npu"), async_op=True)
    if rank == 1:
        time.sleep(0.05)
    dist.all_reduce(torch.ones(4, device="npu"), async_op=True)
