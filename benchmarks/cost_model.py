"""A cost model of one optimizer step on accelerators, from counted bytes and operators. Modelled, never measured.

    python benchmarks/cost_model.py                       print the tables of docs/accelerators.md

    time = bytes / bandwidth + launches * latency + host

Bytes and operators come from benchmarks/results/traffic.csv (`ingot bench --parts traffic`). A list operator needs
several launches for many tensors: the tables of torch's multi_tensor_apply (ATen/native/cuda/MultiTensorApply.cuh) hold
about 48 tensors and 320 chunks of 65536 elements.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results" / "traffic.csv"
LATENCY = 4e-6  # seconds per launch: what a kernel with nothing to do takes on current GPUs
HOST_PER_OPERATOR = 12e-6  # seconds per call from Python, an assumption
HOST_PER_TENSOR = 1.5e-6  # seconds per tensor to look at its gradient and its states, an assumption
WAIT = 20e-6  # seconds to wait for a number of the device


class Device(NamedTuple):
    """A public accelerator; bandwidth in bytes per second, from the maker's data sheet."""

    name: str
    bandwidth: float


DEVICES = [
    Device("A100 80GB SXM", 2.039e12),  # NVIDIA A100 datasheet: 2,039 GB/s
    Device("H100 SXM", 3.35e12),  # NVIDIA H100 datasheet: 3.35 TB/s
    Device("MI300X", 5.3e12),  # AMD Instinct MI300X data sheet: 5.3 TB/s
]


class Model(NamedTuple):
    """What one process updates: tensors and parameters."""

    name: str
    tensors: int
    parameters: float


MODELS = [
    Model("BERT-base", 199, 109.5e6),
    Model("7 B, FSDP2 on 64 ranks", 291, 6.74e9 / 64),
    Model("LoRA (rank 8, 7 B)", 448, 20e6),
]


@dataclass(frozen=True)
class Step:
    """How one implementation makes a step: bytes per parameter, launches, host calls and waits by model."""

    name: str
    bytes: float
    launches: Callable[[Model], float]
    calls: Callable[[Model], float]
    waits: Callable[[Model], float] = lambda model: 0

    def seconds(self, model: Model, device: Device) -> tuple[float, float]:
        """``(on the device, on the host)``."""
        moved = self.bytes * model.parameters / device.bandwidth
        host = self.calls(model) * HOST_PER_OPERATOR + model.tensors * HOST_PER_TENSOR
        return moved + self.launches(model) * LATENCY, host + self.waits(model) * WAIT


def of_lists(operators: int) -> Callable[[Model], float]:
    """The launches of list operators."""

    def launches(model: Model) -> float:
        chunks = model.parameters / 65536 + model.tensors / 2
        return operators * max(ceil(model.tensors / 48), ceil(chunks / 320))

    return launches


def counted(optimizer: str, contestant: str, path: Path) -> tuple[float, int]:
    """``(bytes per parameter, operators)``: bytes on large tensors, operators of 1000 small ones."""
    with path.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["optimizer"] == optimizer]
    mine = {row["shapes"]: row for row in rows if row["contestant"] == contestant}
    small, large = (mine[name] for name in sorted(mine))
    return float(large["bytes_per_parameter"]), int(small["operators"])


def steps(optimizer: str, path: Path) -> list[Step]:
    """Who makes a step of an optimizer, and how."""
    moved, operators = counted(optimizer, "ingot lists", path)
    ideal, _ = counted(optimizer, "ideal", path)
    two_pass = optimizer in ("lamb", "adamp")
    kernels = 4 if two_pass else 1
    few = lambda model: kernels  # noqa: E731
    found = [
        Step("ingot lists", moved, of_lists(operators), lambda model: operators),
        Step("ingot triton (by design)", ideal, few, few),
    ]
    if not two_pass:
        moved, calls = counted(optimizer, "torch foreach", path)
        calls %= (
            1000  # the others read and count up 1000 step counters, on the host: HOST_PER_TENSOR
        )
        found.append(Step("torch foreach", moved, of_lists(calls), lambda model: calls))
        found.append(Step("torch fused", ideal, of_lists(1), lambda model: 2))
    # torch_npu.optim's published Python, run on a stand-in that counts as above; its parameters lie in one piece.
    per_tensor, bytes_npu, waits = {
        "adamw": (0, 88, 0),
        "sgd": (0, 32, 0),
        "lamb": (11, 140, 2),
        "adamp": (26, 188, 2),
    }[optimizer]
    calls_npu = lambda model: 11 + per_tensor * model.tensors  # noqa: E731
    found.append(
        Step("torch_npu.optim", bytes_npu, calls_npu, calls_npu, lambda m: waits * m.tensors)
    )
    return found


def table(optimizer: str, title: str, path: Path) -> str:
    """Milliseconds per step, as Markdown: device + host."""
    heads = [f"{model.name}, {device.name}" for model in MODELS for device in DEVICES]
    lines = [f"**{title}**, modelled milliseconds, device + host:", ""]
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for step in steps(optimizer, path):
        cells = []
        for model in MODELS:
            for device in DEVICES:
                on_device, host = step.seconds(model, device)
                cells.append(f"{1e3 * on_device:.2f} + {1e3 * host:.1f}")
        lines.append(f"| {step.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="A cost model of one optimizer step.")
    parser.add_argument("--counts", type=Path, default=RESULTS, help="default %(default)s")
    path = parser.parse_args(arguments).counts
    for optimizer, title in (("adamw", "AdamW"), ("lamb", "LAMB"), ("adamp", "AdamP")):
        print(table(optimizer, title, path), end="\n\n")


if __name__ == "__main__":
    main()
