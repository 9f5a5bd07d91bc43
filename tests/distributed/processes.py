"""Runs a function in several processes joined by gloo; a failure or a deadlock in one fails the test."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
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
# A collective that some process does not join raises after this time: long, because a busy machine is no deadlock.
COLLECTIVE_SECONDS = 600

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(PRELOAD)


class Crew:
    """Processes joined by gloo that do one job after the other."""

    def __init__(self, processes: int) -> None:
        self.folder = TemporaryDirectory()
        self.pipes, self.workers = [], []
        for rank in range(processes):
            here, there = context.Pipe()
            worker = context.Process(
                target=serve, args=(rank, processes, self.folder.name, there), daemon=True
            )
            worker.start()
            there.close()
            self.pipes.append(here)
            self.workers.append(worker)

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``job(rank, *args)`` returned in each process; raises what went wrong in any of them."""
        for pipe in self.pipes:
            pipe.send((job, pack(args)))
        return collect(self.pipes)

    def close(self) -> None:
        """End the processes."""
        with contextlib.suppress(OSError):
            for pipe in self.pipes:
                pipe.send(None)
        for worker in self.workers:
            worker.join(30)
            worker.kill()
        self.folder.cleanup()


def run(processes: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """One job in processes of its own."""
    crew = Crew(processes)
    try:
        return crew.run(job, *args)
    finally:
        crew.close()


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


def collect(pipes: list[Connection]) -> list[Any]:
    """One result per pipe; the first failure is an error."""
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        for pipe in wait([pipe for rank, pipe in enumerate(pipes) if rank not in results]):
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                fine, value = pipes[rank].recv()
            except EOFError:
                raise RuntimeError(f"process {rank} died") from None
            if not fine:
                raise AssertionError(f"process {rank}:\n{value}")
            results[rank] = unpack(value)
    return [results[rank] for rank in range(len(pipes))]


def serve(rank: int, processes: int, folder: str, pipe: Connection) -> None:
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
        while (order := pipe.recv()) is not None:
            job, args = order
            pipe.send((True, pack(job(rank, *unpack(args)))))
        dist.barrier()
        dist.destroy_process_group()
    except (EOFError, KeyboardInterrupt):  # whoever gave the orders is gone
        pass
    except BaseException:
        pipe.send((False, traceback.format_exc()))
