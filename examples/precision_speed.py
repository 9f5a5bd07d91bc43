"""Times steps in every precision on this machine, and prints the bytes each keeps per parameter.

python examples/precision_speed.py                   # 10 million parameters in 100 tensors
python examples/precision_speed.py --optimizer NpuFusedLamb --elements 1000000

One thread, and the time it was running: other programs do not count. The settings take turns, and the best time of
each is reported.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from ingot import optim
from ingot.optimizer import FusedOptimizer

SETTINGS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float32, 16-bit states": (torch.float32, {"state_dtype": torch.bfloat16}),
    "bfloat16, float32 states": (torch.bfloat16, {}),
    "bfloat16, float32 states, stochastic": (torch.bfloat16, {"rounding": "stochastic"}),
    "bfloat16, masters": (torch.bfloat16, {"master_weights": True}),
    "bfloat16, masters, 16-bit states": (
        torch.bfloat16,
        {"master_weights": True, "state_dtype": "param"},
    ),
    "all bfloat16, nearest": (torch.bfloat16, {"state_dtype": "param"}),
    "all bfloat16, stochastic": (
        torch.bfloat16,
        {"state_dtype": "param", "rounding": "stochastic"},
    ),
    "all float16, stochastic": (torch.float16, {"state_dtype": "param", "rounding": "stochastic"}),
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


def main() -> None:
    """Time all settings in turns, so that a busy moment hits all of them alike; report the best of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--optimizer", choices=optim.__all__, default="NpuFusedAdamW")
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [arguments.elements // 100] * 100
    kind = getattr(optim, arguments.optimizer)
    optimizers = {setting: ready(kind, setting, shapes) for setting in SETTINGS}
    best = dict.fromkeys(SETTINGS, float("inf"))
    for _ in range(arguments.rounds):
        for setting, optimizer in optimizers.items():
            start = time.process_time()
            optimizer.step()
            best[setting] = min(best[setting], time.process_time() - start)
    print(f"{arguments.optimizer}, {sum(shapes):,} parameters, one thread")
    for setting, optimizer in optimizers.items():
        nanoseconds = best[setting] / sum(shapes) * 1e9
        print(f"{setting:38} {kept_bytes(optimizer):5.1f} B {nanoseconds:7.2f} ns per parameter")


if __name__ == "__main__":
    main()
