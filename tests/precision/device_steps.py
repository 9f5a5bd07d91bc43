"""The job of test_on_a_device.py: the same AMP steps on the CPU and on the simulated NPU, counting waits."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ingot.npusim
from ingot import optim

OPTIONS: list[dict[str, Any]] = [
    {},
    {"master_weights": True},
    {"state_dtype": "param", "rounding": "stochastic"},
]


class Waits(TorchDispatchMode):
    """Counts how often the value of a tensor is read: each time the program waits for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def train(kind: Any, device: str, options: dict[str, Any]) -> tuple[Tensor, Tensor, list[int]]:
    """Four steps, one of them an overflow: the parameter, the norm, and the waits of each step."""
    generator = torch.Generator().manual_seed(0)
    param = torch.randn(7, 5, generator=generator).bfloat16().to(device).requires_grad_()
    optimizer = kind([param], lr=0.03, max_grad_norm=0.5, backend="lists", **options)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    scaler.scale(torch.zeros((), device=device))
    waits = []
    for step in range(4):
        grad = torch.randn(7, 5, generator=generator) * scaler.get_scale()
        if step == 1:
            grad[0, 0] = torch.inf
        param.grad = grad.bfloat16().to(device)
        with Waits() as counter:
            scaler.step(optimizer)
        waits.append(counter.count)
        scaler.update()
    assert scaler.get_scale() == 512.0
    assert optimizer.grad_norm.device.type == device
    return param.detach().cpu(), optimizer.grad_norm.cpu(), waits


def main() -> None:
    """Compare the two devices for every optimizer."""
    ingot.npusim.install()
    for name in optim.__all__:
        for options in OPTIONS:
            here, norm, _ = train(getattr(optim, name), "cpu", options)
            there, norm_there, waits = train(getattr(optim, name), "npu", options)
            assert torch.equal(here, there), (name, options)
            torch.testing.assert_close(norm, norm_there, rtol=1e-6, atol=0)
            assert waits == [1] * 4, (name, options, waits)  # found_inf, and nothing else
    print("all the same")


if __name__ == "__main__":
    main()
