"""torch.npu of the simulated device: one device, always synchronous, the CPU's random numbers."""

from types import TracebackType
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.kernels import check_index
from ingot.npusim.module import SimulatedModule

Device = int | str | torch.device | None


def _index(device: Device) -> int:
    """Returns the index a device argument means; raises for any device but the one there is."""
    if device is None:
        return 0
    if isinstance(device, int):
        device = torch.device(DEVICE_TYPE, device)
    device = torch.device(device)
    if device.type != DEVICE_TYPE:
        raise ValueError(f"expected an {DEVICE_TYPE} device, got {str(device)!r}")
    check_index(device)
    return 0


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


def device_count() -> int:
    """Returns 1."""
    return 1


def current_device() -> int:
    """Returns 0."""
    return 0


def set_device(device: Device) -> None:
    """Accepts the one device there is."""
    _index(device)


def get_device_name(device: Device = None) -> str:
    """Returns a name no real device has."""
    _index(device)
    return "simulated NPU (ingot.npusim)"


def synchronize(device: Device = None) -> None:
    """Returns at once: every operator has finished when it returns."""
    _index(device)


def empty_cache() -> None:
    """Does nothing: memory is the host's, and freed when its last tensor is."""


def set_compile_mode(*, jit_compile: bool = False) -> None:
    """Accepts how a real NPU should compile operators, which changes nothing here."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the types autocast may use."""
    return [torch.float16, torch.bfloat16, torch.float32]


def manual_seed(seed: int) -> None:
    """Seeds the random numbers, which are those of the CPU's default generator."""
    torch.default_generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the random numbers with a number that is itself random."""
    torch.default_generator.seed()


def initial_seed() -> int:
    """Returns the seed in use."""
    return torch.default_generator.initial_seed()


def get_rng_state(device: Device = DEVICE_TYPE) -> torch.Tensor:
    """Returns the state of the random numbers."""
    _index(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Device = DEVICE_TYPE) -> None:
    """Sets the state of the random numbers."""
    _index(device)
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of the random numbers, for each of the one device."""
    return [torch.get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the state of the random numbers from what get_rng_state_all returned."""
    for new_state in new_states:
        torch.set_rng_state(new_state)


class device:
    """The context manager `with torch.npu.device(0):`, which has only one device to choose."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def _is_in_bad_fork() -> bool:
    return False


def make_device_module(**more: Any) -> SimulatedModule:
    """Builds torch.npu, which is torch_npu.npu as well.

    Args:
        more: further contents, such as the module `amp`.
    """
    public = (
        is_available,
        is_initialized,
        init,
        is_bf16_supported,
        device_count,
        current_device,
        set_device,
        get_device_name,
        synchronize,
        empty_cache,
        set_compile_mode,
        get_amp_supported_dtype,
        manual_seed,
        seed,
        initial_seed,
        get_rng_state,
        set_rng_state,
        get_rng_state_all,
        set_rng_state_all,
        device,
    )
    contents: dict[str, Any] = {thing.__name__: thing for thing in public}
    contents["manual_seed_all"] = manual_seed
    contents["seed_all"] = seed
    # What torch itself asks of a device module.
    contents["_is_in_bad_fork"] = _is_in_bad_fork
    contents["_lazy_init"] = init
    contents["_is_initialized"] = is_initialized
    return SimulatedModule("torch_npu.npu", "torch.npu, simulated.", contents | more)
