"""torch.npu.random: the random numbers of the simulated NPU are those of the CPU's generator."""

from collections.abc import Iterable

import torch

from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.devices import Device, device_count, index_of


def manual_seed(seed: int) -> None:
    """Seeds the random numbers, which are those of the CPU's default generator."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the random numbers of every device, which are the same."""
    manual_seed(seed)


def seed() -> None:
    """Seeds the random numbers with a number that is itself random."""
    torch.default_generator.seed()


def seed_all() -> None:
    """Seeds the random numbers of every device with a number that is itself random."""
    seed()


def initial_seed() -> int:
    """Returns the seed in use."""
    return torch.default_generator.initial_seed()


def get_rng_state(device: Device = DEVICE_TYPE) -> torch.Tensor:
    """Returns the state of the random numbers."""
    index_of(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Device = DEVICE_TYPE) -> None:
    """Sets the state of the random numbers."""
    index_of(device)
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of the random numbers once for each device index."""
    return [torch.get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of the random numbers from what get_rng_state_all returned."""
    for new_state in new_states:
        torch.set_rng_state(new_state)


PUBLIC = (
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    initial_seed,
    get_rng_state,
    set_rng_state,
    get_rng_state_all,
    set_rng_state_all,
)
