"""torch_npu.npu.utils: what libraries ask about the chip, answered for an Atlas A2 (Ascend 910B1)."""

import math

import torch

from ingot.npusim import devices, streams
from ingot.npusim.module import SimulatedModule

# torch_npu's number for an Ascend 910B1: the first with float32 matrix products, bfloat16, inf and nan.
SOC_VERSION = 220


def get_soc_version() -> int:
    """Returns 220, torch_npu's number for an Ascend 910B1."""
    return SOC_VERSION


def is_support_inf_nan() -> bool:
    """Returns True: overflows become inf and nan, as on an Ascend 910B1."""
    return True


def npu_check_overflow(grad: float | torch.Tensor) -> bool:
    """Tells whether a number is, or the sum of a tensor's elements is, inf or nan."""
    total = float(grad.float().sum()) if isinstance(grad, torch.Tensor) else float(grad)
    return not math.isfinite(total)


def make_utils_module() -> SimulatedModule:
    """Builds torch_npu.npu.utils."""
    public = (
        get_soc_version,
        is_support_inf_nan,
        npu_check_overflow,
        devices.set_device,
        devices.current_device,
        devices.synchronize,
        devices.device,
        devices.device_of,
        streams.stream,
        streams.set_stream,
        streams.current_stream,
        streams.default_stream,
    )
    contents = {thing.__name__: thing for thing in public} | {"_get_device_index": _device_index}
    return SimulatedModule("torch_npu.npu.utils", "About the simulated NPU.", contents)


def _device_index(device: devices.Device, optional: bool = False) -> int:
    if not optional and (device is None or torch.device(device).index is None):
        raise ValueError(f"expected a device with an index, got {device!r}")
    return devices.index_of(device)
