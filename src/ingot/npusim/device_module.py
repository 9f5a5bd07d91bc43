"""torch.npu of the simulated device: builds the module from its parts."""

from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim import devices, memory, random_numbers, streams
from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.module import SimulatedModule
from ingot.npusim.typed_tensors import make_typed_tensors
from ingot.npusim.utils_module import get_soc_version


def is_available() -> bool:
    """Returns True."""
    return True


def is_initialized() -> bool:
    """Returns True."""
    return True


def init() -> None:
    """Does nothing: the device is ready as soon as it is installed."""


def is_bf16_supported() -> bool:
    """Returns True."""
    return True


def set_compile_mode(*, jit_compile: bool = False) -> None:
    """Accepts how a real NPU should compile operators, which changes nothing here."""


def set_option(option: dict[str, Any]) -> None:
    """Accepts how a real NPU should compile operators, which changes nothing here."""
    if not isinstance(option, dict):
        raise TypeError(f"option must be a dict, not {type(option).__name__}")


def is_jit_compile_false() -> bool:
    """Returns True: nothing is compiled here."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types autocast may use."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_autocast_enabled() -> bool:
    """Tells whether autocast is on for the device."""
    return torch.is_autocast_enabled(DEVICE_TYPE)


def set_autocast_enabled(enable: bool) -> None:
    """Switches autocast on or off for the device."""
    torch.set_autocast_enabled(DEVICE_TYPE, enable)


def get_autocast_dtype() -> torch.dtype:
    """Returns the type autocast casts to."""
    return torch.get_autocast_dtype(DEVICE_TYPE)


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Sets the type autocast casts to."""
    torch.set_autocast_dtype(DEVICE_TYPE, dtype)


def ipc_collect() -> None:
    """Does nothing: no memory is shared between processes."""


def is_current_stream_capturing() -> bool:
    """Returns False: no graphs are captured."""
    return False


def _is_in_bad_fork() -> bool:
    return False


_HERE: tuple[Callable[..., Any], ...] = (
    is_available,
    is_initialized,
    init,
    is_bf16_supported,
    set_compile_mode,
    set_option,
    is_jit_compile_false,
    get_amp_supported_dtype,
    is_autocast_enabled,
    set_autocast_enabled,
    get_autocast_dtype,
    set_autocast_dtype,
    ipc_collect,
    is_current_stream_capturing,
    get_soc_version,
)
_DEVICES: tuple[Callable[..., Any], ...] = (
    devices.device_count,
    devices.current_device,
    devices.set_device,
    devices.device,
    devices.device_of,
    devices.get_device_name,
    devices.get_device_properties,
    devices.get_device_capability,
    devices.can_device_access_peer,
    devices.synchronize,
    devices.utilization,
)
_STREAMS: tuple[Callable[..., Any], ...] = (
    streams.Stream,
    streams.Event,
    streams.StreamContext,
    streams.stream,
    streams.set_stream,
    streams.current_stream,
    streams.default_stream,
)
_MEMORY: tuple[Callable[..., Any], ...] = (
    memory.memory_allocated,
    memory.max_memory_allocated,
    memory.reset_peak_memory_stats,
    memory.reset_accumulated_memory_stats,
    memory.mem_get_info,
    memory.memory_stats,
    memory.memory_summary,
    memory.empty_cache,
)
# Nothing is cached, so what is reserved is what is allocated.
_MEMORY_ALIASES: dict[str, Callable[..., Any]] = {
    "memory_reserved": memory.memory_allocated,
    "max_memory_reserved": memory.max_memory_allocated,
    "memory_cached": memory.memory_allocated,
    "max_memory_cached": memory.max_memory_allocated,
    "reset_max_memory_allocated": memory.reset_peak_memory_stats,
    "reset_max_memory_cached": memory.reset_peak_memory_stats,
}


def make_random_module() -> SimulatedModule:
    """Builds torch.npu.random."""
    contents = {function.__name__: function for function in random_numbers.PUBLIC}
    return SimulatedModule("torch_npu.npu.random", "Random numbers, which are the CPU's.", contents)


def make_device_module(**more: Any) -> SimulatedModule:
    """Builds torch.npu, which is torch_npu.npu as well.

    Args:
        more: further contents, such as the module `amp`.
    """
    public = (*_HERE, *_DEVICES, *_STREAMS, *_MEMORY, *random_numbers.PUBLIC)
    contents: dict[str, Any] = {thing.__name__: thing for thing in public}
    contents |= _MEMORY_ALIASES | make_typed_tensors()
    contents["native_device"] = DEVICE_TYPE  # MMEngine asks for it
    # What torch itself asks of a device module.
    contents["_is_in_bad_fork"] = _is_in_bad_fork
    contents["_lazy_init"] = init
    contents["_is_initialized"] = is_initialized
    return SimulatedModule("torch_npu.npu", "torch.npu, simulated.", contents | more)
