"""Zero-copy passage between the host and the simulated device.

A DLPack capsule says on which device its memory is. torch maps the DLPack device `kDLExtDev` to
PrivateUse1, so writing that number into the capsule of a CPU tensor gives a real PrivateUse1 tensor
over the same host memory, and writing `kDLCPU` gives the CPU tensor back. Neither copies anything.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import TypeIs

DEVICE_TYPE = "npu"

# Told of the storage of every host tensor that becomes the device's: who counts memory.
watchers: list[Callable[[torch.UntypedStorage], None]] = []

_KDL_CPU = 1
_KDL_EXT_DEV = 12


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLTensorHead(ctypes.Structure):
    """The head of DLTensor, itself the first member of what the capsule points to."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _DLDevice))


# A private prototype: setting argtypes on ctypes.pythonapi would change it for everybody.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def is_npu(value: Any) -> TypeIs[torch.Tensor]:
    """Tells whether a value is a tensor on the simulated device."""
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def capsule_head(tensor: torch.Tensor) -> tuple[Any, _DLTensorHead]:
    """Exports a tensor; returns the capsule and its head, which lives as long as the capsule."""
    capsule = torch._C._to_dlpack(tensor)
    return capsule, _DLTensorHead.from_address(_capsule_pointer(capsule, b"dltensor"))


def _retag(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    try:
        capsule, head = capsule_head(tensor)
    except BufferError as error:
        # DLPack has no quantized and no sub-byte types.
        raise NotImplementedError(
            f"the simulated NPU (ingot.npusim) has no tensors of dtype {tensor.dtype}: {error}"
        ) from error
    head.device.device_type, head.device.device_id = device_type, 0
    # torch checks neither pointer nor device here: the capsule's word counts.
    return torch._C._from_dlpack(capsule)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the CPU tensor over the memory of a simulated one."""
    if tensor._is_zerotensor():  # has no memory
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    # DLPack knows nothing of the lazy conjugate and negative bits: take them off, then put them back.
    if tensor.is_conj():
        return to_host(torch._conj(tensor)).conj()
    if tensor.is_neg():
        return torch._neg_view(to_host(torch._neg_view(tensor)))
    return _retag(tensor, _KDL_CPU)


def to_npu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the simulated tensor over the memory of a CPU tensor."""
    if tensor._is_zerotensor():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    tensor = tensor.resolve_conj().resolve_neg()
    for watch in watchers:
        watch(tensor.untyped_storage())
    return _retag(tensor, _KDL_EXT_DEV)
