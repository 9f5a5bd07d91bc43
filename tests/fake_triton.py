"""A driver for Triton that compiles for a GPU and launches nothing: for what the host does in a step."""

from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ingot.backends import triton as backend
from ingot.backends.triton_kernels import build


class Utils:
    """What a driver is asked when a kernel is loaded."""

    def load_binary(self, *arguments: Any) -> tuple[int, ...]:
        return 1, 1, 64, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 17, "multiprocessor_count": 132}


class FakeDriver:
    """Counts launches by the name of the kernel."""

    utils = Utils()

    def __init__(self, device: str) -> None:
        self.device = device
        self.launched: list[str] = []

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device(self.device)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments: self.launched.append(source.name)


def install(patch: pytest.MonkeyPatch, device: str) -> FakeDriver:
    """Let Triton believe in a device."""
    fake = FakeDriver(device)
    patch.setattr(driver, "_active", fake)
    patch.setattr(backend.Triton, "devices", (device,))
    forget()
    return fake


def forget() -> None:
    """Forget the device and the kernels, which belong to a driver."""
    remembering = (
        backend._problem,
        backend._driven,
        build.kernels,
        build.collect,
        build.options_here,
    )
    for cached in remembering:
        cached.cache_clear()
