"""Mends what torch needs a C++ allocator for: storages on the device, and pinned memory.

These are the only changes to Python classes of torch, besides the methods torch itself generates
for a device. Nothing changes for other devices.
"""

from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE


def _storage_to_npu(
    storage: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """Returns the storage on the device: itself if it is there, a copy otherwise."""
    if storage.device.type == DEVICE_TYPE:
        return storage
    return torch.empty(0, dtype=torch.uint8).set_(storage).to(DEVICE_TYPE).untyped_storage()


def _is_npu(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == DEVICE_TYPE


def mend_storage() -> None:
    """Lets storages be made on the device and moved to it, as torch.load and deepcopy do."""
    setattr(torch.UntypedStorage, DEVICE_TYPE, _storage_to_npu)
    setattr(torch.UntypedStorage, f"is_{DEVICE_TYPE}", property(_is_npu))
    make: Callable[..., Any] = torch.UntypedStorage.__new__

    # Without this, the missing allocator is a segmentation fault (torch 2.13).
    def make_storage(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == DEVICE_TYPE:
            size = args[0] if args else kwargs.get("size", 0)
            if not isinstance(size, int):  # a sequence of bytes
                return _storage_to_npu(make(cls, size))
            return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return make(cls, *args, **kwargs)

    torch.UntypedStorage.__new__ = staticmethod(make_storage)  # type: ignore[method-assign]


def mend_pinning() -> None:
    """Lets `pin_memory()` of a CPU tensor return that tensor: all memory is the device's here."""
    pin = torch.Tensor.pin_memory

    def pin_memory(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if tensor.device.type == "cpu" else pin(tensor, *args, **kwargs)

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]
