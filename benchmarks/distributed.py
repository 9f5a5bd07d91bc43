"""Step time and bytes communicated by an optimizer step, against the number of processes and of parameters.

    python benchmarks/distributed.py

Every parameter is a DTensor, split along dim 0 over all processes of this machine, as FSDP2 splits it (gloo, one thread
per process). The table is what docs/distributed.md shows. Processes share the cores of the machine: with more processes
than cores the times say nothing about machines that have enough of them, the bytes do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter

from ingot import optim


def transformer(layers: int, width: int) -> list[tuple[int, ...]]:
    """The shapes of a transformer's parameters."""
    block = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width)]
    block += [(4 * width,), (width, 4 * width), (width,), *[(width,)] * 4]
    return [(8192, width), *block * layers, (width,), (width,)]


SHAPES = {
    "transformer, 4 layers of 256": transformer(4, 256),
    "1000 of (16, 64)": [(16, 64)] * 1000,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "torch.optim.AdamW fused": lambda params: torch.optim.AdamW(params, fused=True),
    "NpuFusedAdamW": lambda params: optim.NpuFusedAdamW(params),
    "NpuFusedAdamW clipped": lambda params: optim.NpuFusedAdamW(params, max_grad_norm=1.0),
    "NpuFusedSGD": lambda params: optim.NpuFusedSGD(params, lr=0.1, momentum=0.9),
    "NpuFusedBertAdam": lambda params: optim.NpuFusedBertAdam(params),
    "NpuFusedLamb": lambda params: optim.NpuFusedLamb(params),
    "NpuFusedAdamP": lambda params: optim.NpuFusedAdamP(params),
}


def split_params(shapes: list[tuple[int, ...]]) -> list[Parameter]:
    """Parameters with gradients; each process makes its own part."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    params = []
    for shape in shapes:
        rows = shape[0] // dist.get_world_size()
        parts = [torch.randn(rows, *shape[1:]) for _ in range(2)]
        param, grad = (
            DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for part in parts
        )
        params.append(Parameter(param))
        params[-1].grad = grad
    return params


def measure(
    make: Callable[[Any], torch.optim.Optimizer], params: list[Parameter], repeats: int
) -> Any:
    """Wall and CPU times of steps in ms; collectives, and bytes handed to them by each process."""
    optimizer = make(params)
    sent: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *args, **kwargs)

    for _ in range(3):
        optimizer.step()
    with mock.patch.object(dist, "all_reduce", counting):
        optimizer.step()
    times, work = [], []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter(), time.process_time()
        optimizer.step()
        times.append((time.perf_counter() - start[0]) * 1e3)
        work.append((time.process_time() - start[1]) * 1e3)
    return times, min(work), len(sent), sum(sent)


def work(rank: int, processes: int, store: str, names: list[str], repeats: int) -> None:
    """One process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    for name in names:
        for label, make in OPTIMIZERS.items():
            result = measure(make, split_params(SHAPES[name]), repeats)
            gathered: list[Any] = [None] * processes
            dist.all_gather_object(gathered, result)
            if rank == 0:
                # A step ends with its slowest process; the best of all steps is least disturbed by others.
                best = min(map(max, *(times for times, *_ in gathered), [0.0] * repeats))
                busiest = max(work for _, work, *_ in gathered)
                numbers = [str(processes), f"{best:.2f}", f"{busiest:.2f}", *map(str, result[2:])]
                row = [name, label, *numbers]
                print("| " + " | ".join(row) + " |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Step time and bytes communicated, by processes.")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    print(
        "| shapes | optimizer | processes | ms per step | CPU ms per process | all-reduces | bytes per process |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for processes in arguments.processes:
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            mp.spawn(
                work, (processes, store, arguments.shapes, arguments.repeats), nprocs=processes
            )


if __name__ == "__main__":
    main()
