"""Runs a function in several processes joined by gloo; a failure or a deadlock in one fails the test."""

from __future__ import annotations

import io
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

# Imported once, in the process that all others are forked from: importing takes longer than most jobs.
PRELOAD = [
    "ingot",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.optim",
    "torch.testing",
]
COLLECTIVE_SECONDS = 60  # a collective that some process does not join raises after this time

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(PRELOAD)


def run(processes: int, job: Callable[..., Any], *args: Any, seconds: float = 600) -> list[Any]:
    """What ``job(rank, *args)`` returned in each process; raises what went wrong in any of them."""
    with TemporaryDirectory() as folder:
        pipes, workers = [], []
        for rank in range(processes):
            here, there = context.Pipe(duplex=False)
            worker = context.Process(
                target=start, args=(rank, processes, folder, there, job, pack(args)), daemon=True
            )
            worker.start()
            there.close()
            pipes.append(here)
            workers.append(worker)
        try:
            return collect(pipes, time.monotonic() + seconds)
        finally:
            for worker in workers:
                worker.join(5)
                worker.kill()


def check_all(processes: int, job: Callable[..., dict[str, str]], *args: Any) -> None:
    """Run a job that returns what went wrong by the name of a check; nothing may be wrong in any process."""
    for rank, outcome in enumerate(run(processes, job, *args)):
        wrong = [f"{name}: {text}" for name, text in outcome.items() if text]
        assert outcome, f"process {rank} checked nothing"
        assert not wrong, f"process {rank}, {len(wrong)} of {len(outcome)}:\n" + "\n".join(wrong)


def pack(value: Any) -> bytes:
    """As bytes: multiprocessing would hand tensors over in shared memory, which ends with the process."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(value: bytes) -> Any:
    """What was packed."""
    return torch.load(io.BytesIO(value), weights_only=False)


def collect(pipes: list[Connection], deadline: float) -> list[Any]:
    """One result per pipe; the first failure, or silence until the deadline, is an error."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        open_pipes = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(open_pipes, deadline - time.monotonic())
        if not ready:
            missing = [rank for rank in range(len(pipes)) if rank not in results]
            raise TimeoutError(f"processes {missing} did not finish")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                fine, value = pipe.recv()
            except EOFError:
                raise RuntimeError(f"process {rank} died") from None
            if not fine:
                raise AssertionError(f"process {rank}:\n{value}")
            results[rank] = unpack(value)
    return [results[rank] for rank in range(len(pipes))]


def start(
    rank: int, processes: int, folder: str, pipe: Connection, job: Callable[..., Any], args: bytes
) -> None:
    """The main function of a process."""
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{Path(folder) / 'store'}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=COLLECTIVE_SECONDS),
        )
        pipe.send((True, pack(job(rank, *unpack(args)))))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
