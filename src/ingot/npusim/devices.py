"""Which NPUs a process has: how many, which one is chosen, what they are like.

A process has one simulated device, whose tensors say `npu:0`: torch's autograd serves no second one
of a device written in Python (torch 2.13). Scripts for several processes choose `npu:<local rank>`
in each, so every index below `device_count()` is accepted as a name for the process's one device;
`current_device()` is 0, as tensors say: FSDP2 compares the two.
"""

import dataclasses
import os

import torch

from ingot.npusim.bridge import DEVICE_TYPE, is_npu

Device = int | str | torch.device | None

COUNT_VARIABLE = "INGOT_NPUSIM_DEVICES"
NAME = "simulated NPU (ingot.npusim)"


def device_count() -> int:
    """Returns how many device indices there are.

    INGOT_NPUSIM_DEVICES says it; under torchrun it is the number of processes on this machine, so
    that each finds the device of its local rank; otherwise it is 1.
    """
    text = os.environ.get(COUNT_VARIABLE) or os.environ.get("LOCAL_WORLD_SIZE") or "1"
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(
            f"{COUNT_VARIABLE} (or LOCAL_WORLD_SIZE) must be a positive whole number, not {text!r}"
        )
    return count


def check_index(device: torch.device | None) -> None:
    """Raises RuntimeError for a device whose index is not below the number of devices."""
    if device is None or device.index in (None, 0):
        return
    count = device_count()
    if device.index >= count:
        raise RuntimeError(
            f"Invalid NPU device index {device.index}: the simulated NPU (ingot.npusim) has "
            f"{count} device{'s' * (count > 1)}; {COUNT_VARIABLE}={device.index + 1} in the "
            "environment makes this index valid"
        )


def index_of(device: Device) -> int:
    """Returns the index of the device an argument means, which is 0; raises if there is none."""
    if device is None or (isinstance(device, int) and device < 0):
        return 0
    if isinstance(device, int):
        device = torch.device(DEVICE_TYPE, device)
    device = torch.device(device)
    if device.type != DEVICE_TYPE:
        raise ValueError(f"expected an {DEVICE_TYPE} device, got {str(device)!r}")
    check_index(device)
    return 0


def current_device() -> int:
    """Returns 0, the index that tensors say."""
    return 0


def set_device(device: Device) -> None:
    """Accepts any index below the number of devices."""
    index_of(device)


class device:
    """The context manager `with torch.npu.device(0):`, which has only one device to choose."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


class device_of(device):
    """The context manager that chooses the device of a tensor; of a CPU tensor, none."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if is_npu(obj) else None)


def get_device_name(device: Device = None) -> str:
    """Returns a name no real device has."""
    index_of(device)
    return NAME


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What torch_npu tells of a device, here the host's own numbers; CUDA's fields are None."""

    name: str
    total_memory: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    major: None = None
    minor: None = None
    multi_processor_count: None = None


def total_memory() -> int:
    """Returns the memory of the device in bytes: all of the host's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Returns the properties of the device, which are those of the host."""
    index_of(device)
    cores = os.cpu_count() or 1
    # Not every system has this name, and some answer 0 or -1.
    cache = os.sysconf("SC_LEVEL2_CACHE_SIZE") if "SC_LEVEL2_CACHE_SIZE" in os.sysconf_names else 0
    return DeviceProperties(NAME, total_memory(), cores, cores, max(cache, 0))


def get_device_capability(device: Device = None) -> None:
    """Returns None, as torch_npu does: the notion is CUDA's."""
    index_of(device)


def can_device_access_peer(device_id: Device, peer_device_id: Device) -> bool:
    """Returns True: all memory is the host's."""
    index_of(device_id)
    index_of(peer_device_id)
    return True


def synchronize(device: Device = None) -> None:
    """Returns at once: every operator has finished when it returns."""
    index_of(device)


def utilization(device: Device = None) -> int:
    """Returns 0: no operator is ever under way beside the caller."""
    index_of(device)
    return 0
