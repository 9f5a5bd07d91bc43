"""Times steps in every precision on this machine, and prints the table of docs/precision.md.

python examples/precision_speed.py                   # 10 million parameters in 100 tensors; AdamW and Lamb
python examples/precision_speed.py --optimizers NpuFusedSGD --elements 1000000 --rounds 3

One thread, and the time it was running: other programs do not count. The settings take turns, and the best time of
each is reported, in nanoseconds per parameter. Bytes are those of the weights and states; 8-bit states need tensors of
4096 elements, 409600 in all.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from ingot import optim
from ingot.optimizer import FusedOptimizer

STOCHASTIC = {"rounding": "stochastic"}
MASTERS = {"master_weights": True}
NARROW = {"state_dtype": "param"}  # states of the type of their parameter
SETTINGS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float32, bfloat16 states": (torch.float32, {"state_dtype": torch.bfloat16}),
    "float32, 8-bit states": (torch.float32, {"state_dtype": "8bit"}),
    "bfloat16, float32 states": (torch.bfloat16, {}),
    "bfloat16, float32 states, stochastic": (torch.bfloat16, STOCHASTIC),
    "bfloat16, master weights": (torch.bfloat16, MASTERS),
    "bfloat16, master weights, bfloat16 states": (torch.bfloat16, MASTERS | NARROW),
    "bfloat16, master weights, 8-bit states": (torch.bfloat16, MASTERS | {"state_dtype": "8bit"}),
    "all bfloat16, to nearest": (torch.bfloat16, NARROW),
    "all bfloat16, stochastic": (torch.bfloat16, NARROW | STOCHASTIC),
    "all float16, stochastic": (torch.float16, NARROW | STOCHASTIC),
}


def ready(kind: type[FusedOptimizer], setting: str, shapes: list[int]) -> FusedOptimizer:
    """An optimizer with gradients, after its first step."""
    dtype, options = SETTINGS[setting]
    params = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = kind(params, lr=1e-3, **options)
    optimizer.step()
    return optimizer


def kept_bytes(optimizer: FusedOptimizer) -> float:
    """Bytes per parameter of the weights and all states; gradients come on top."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    tensors = [*params, *(v for p in params for v in optimizer.state[p].values())]
    total = sum(t.numel() * t.itemsize for t in tensors if isinstance(t, Tensor))
    return total / sum(param.numel() for param in params)


def timed(
    kind: type[FusedOptimizer], shapes: list[int], rounds: int
) -> dict[str, tuple[float, float]]:
    """Bytes and nanoseconds per parameter of every setting.

    All settings take turns, so that a busy moment hits all of them alike.
    """
    optimizers = {setting: ready(kind, setting, shapes) for setting in SETTINGS}
    best = dict.fromkeys(SETTINGS, float("inf"))
    for _ in range(rounds):
        for setting, optimizer in optimizers.items():
            start = time.process_time()
            optimizer.step()
            best[setting] = min(best[setting], time.process_time() - start)
    return {
        setting: (kept_bytes(optimizer), best[setting] / sum(shapes) * 1e9)
        for setting, optimizer in optimizers.items()
    }


def main() -> None:
    """Time all settings with each optimizer, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--optimizers", nargs="+", choices=optim.__all__, default=["NpuFusedAdamW", "NpuFusedLamb"]
    )
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [arguments.elements // 100] * 100
    found = [timed(getattr(optim, name), shapes, arguments.rounds) for name in arguments.optimizers]
    print(
        "| stored | bytes |",
        *(f"{name.removeprefix('NpuFused')} |" for name in arguments.optimizers),
    )
    print("|---|---|" + "---|" * len(found))
    for setting in SETTINGS:
        columns = [f"{each[setting][1]:.1f} |" for each in found]
        print(f"| {setting} | {round(found[0][setting][0], 1):g} |", *columns)


if __name__ == "__main__":
    main()
