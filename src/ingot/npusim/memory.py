"""Memory statistics of the simulated device: the bytes its living tensors hold, counted exactly.

There is no cache and no block size, so reserved and allocated memory are the same, and a tensor
counts with the bytes of its storage.
"""

import threading
import weakref

import torch

from ingot.npusim.devices import Device, index_of, total_memory


class _Ledger:
    """Counts storages: how many and how many bytes live, at most lived, were made and freed."""

    def __init__(self) -> None:
        # Re-entrant: making an entry can collect garbage, which frees other storages.
        self.lock = threading.RLock()
        self.sizes: dict[int, int] = {}  # by address
        self.bytes = _Gauge()
        self.count = _Gauge()

    def enter(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage of the host that becomes the device's, until it is freed."""
        address, size = storage.data_ptr(), storage.nbytes()
        with self.lock:
            # A known address is a second view of memory that is counted already.
            if size == 0 or address in self.sizes:
                return
            self.sizes[address] = size
            self.bytes.add(size)
            self.count.add(1)
        weakref.finalize(storage, self.leave, address).atexit = False

    def resize(self, address: int, size: int) -> None:
        """Counts a storage, if it is known, with another size."""
        with self.lock:
            if address in self.sizes:
                self.bytes.add(size - self.sizes[address])
                self.sizes[address] = size

    def leave(self, address: int) -> None:
        """Counts a storage no longer."""
        with self.lock:
            self.bytes.add(-self.sizes.pop(address))
            self.count.add(-1)


class _Gauge:
    """One quantity: now, at most, and the sums of what was added and taken away."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        self.current += amount
        self.peak = max(self.peak, self.current)
        if amount > 0:
            self.allocated += amount
        else:
            self.freed -= amount


LEDGER = _Ledger()


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes that tensors hold now."""
    index_of(device)
    return LEDGER.bytes.current


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most bytes that tensors held since the last reset."""
    index_of(device)
    return LEDGER.bytes.peak


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts the peaks anew from what is held now."""
    index_of(device)
    with LEDGER.lock:
        for gauge in (LEDGER.bytes, LEDGER.count):
            gauge.peak = gauge.current


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Starts the sums of what was allocated and freed anew from 0."""
    index_of(device)
    with LEDGER.lock:
        for gauge in (LEDGER.bytes, LEDGER.count):
            gauge.allocated = gauge.freed = 0


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the free and the whole memory in bytes; what is not free, tensors hold."""
    index_of(device)
    whole = total_memory()
    return max(whole - LEDGER.bytes.current, 0), whole


def memory_stats(device: Device = None) -> dict[str, int]:
    """Returns the counts under the names torch gives them for CUDA, the pool `all` only."""
    index_of(device)
    stats: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": 0}
    with LEDGER.lock:
        for names, gauge in (
            (
                ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"),
                LEDGER.bytes,
            ),
            (("allocation", "active", "segment"), LEDGER.count),
        ):
            for name in names:
                for field, value in vars(gauge).items():
                    stats[f"{name}.all.{field}"] = value
    return dict(sorted(stats.items()))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns the counts as text; `abbreviated` leaves out the sums."""
    fields = ["current", "peak"] if abbreviated else ["current", "peak", "allocated", "freed"]
    stats = memory_stats(device)
    lines = ["simulated NPU (ingot.npusim): memory of living tensors"]
    for title, name in (("bytes", "allocated_bytes"), ("storages", "allocation")):
        values = "  ".join(f"{field} {stats[f'{name}.all.{field}']}" for field in fields)
        lines.append(f"{title:>9}: {values}")
    return "\n".join(lines)


def empty_cache() -> None:
    """Does nothing: memory is the host's, and freed when its last tensor is."""
