"""Mends what torch needs C++ for: storages on the device, pinned memory, waiting for the device.

Nothing changes for other devices.
"""

from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.memory import LEDGER


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


def mend_resize() -> None:
    """Lets a storage be emptied and filled again, as FSDP does with gathered parameters.

    Memory that came through DLPack stays what it is, so an emptied storage keeps it, filled with
    NaN: who reads a parameter that was given back will notice. Statistics count it as freed.
    """
    base: Any = torch.UntypedStorage
    resize, nbytes = base.resize_, base.nbytes

    def size_of(storage: Any) -> int:
        resized: int | None = vars(storage).get("_npusim_size")
        return nbytes(storage) if resized is None else resized

    def resize_storage(storage: Any, size: int) -> Any:
        if not _is_npu(storage):
            return resize(storage, size)
        if size > nbytes(storage):
            raise NotImplementedError(
                "the simulated NPU (ingot.npusim) cannot let a storage grow beyond the "
                f"{nbytes(storage)} bytes it was made with; {size} are asked for"
            )
        if size == 0:
            torch.empty(0, dtype=torch.uint8, device=DEVICE_TYPE).set_(storage).fill_(255)
        storage._npusim_size = size
        LEDGER.resize(storage.data_ptr(), size)
        return storage

    base.resize_, base.nbytes = resize_storage, size_of


def mend_pinning() -> None:
    """Lets `pin_memory()` of a CPU tensor return that tensor: all memory is the device's here."""
    pin = torch.Tensor.pin_memory

    def pin_memory(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if tensor.device.type == "cpu" else pin(tensor, *args, **kwargs)

    torch.Tensor.pin_memory = pin_memory  # type: ignore[method-assign, assignment]


def mend_synchronize() -> None:
    """Lets `torch.accelerator.synchronize()` return: torch asks a C++ backend, and there is none."""
    synchronize = torch.accelerator.synchronize

    def synchronize_device(device: Any = None, /) -> None:
        chosen = torch.device(DEVICE_TYPE if device is None or isinstance(device, int) else device)
        if chosen.type != DEVICE_TYPE:
            synchronize(device)

    torch.accelerator.synchronize = synchronize_device
