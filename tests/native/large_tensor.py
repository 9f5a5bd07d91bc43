"""A tensor of more than 2^31 elements, about 13 GB with gradient and momentum: `make big`; not part of the suite.

Indices that pass through 32 bits anywhere would leave elements behind the 2^31st untouched, or change the wrong ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ingot.optim import NpuFusedSGD

COUNT = 2**31 + 4099
NEEDED = 3 * 2 * COUNT + 2**29  # three bfloat16 tensors


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Two steps of SGD with momentum; every element must have made the same way."""
    if available_memory() < NEEDED:
        sys.exit(f"needs {NEEDED / 2**30:.0f} GB of free memory")
    param = torch.zeros(COUNT, dtype=torch.bfloat16, requires_grad=True)
    param.grad = torch.full((COUNT,), 1.0, dtype=torch.bfloat16)
    optimizer = NpuFusedSGD(
        [param], lr=0.5, momentum=0.5, state_dtype=torch.bfloat16, backend="native"
    )
    for step, expected in enumerate((-0.5, -1.25), 1):  # momentum_buffer: 1, then 1.5
        optimizer.step()
        with torch.no_grad():
            low, high = param.aminmax()
        assert low.item() == high.item() == expected, (step, low, high)
        print(f"step {step}: all {COUNT} elements are {expected}")


if __name__ == "__main__":
    main()
