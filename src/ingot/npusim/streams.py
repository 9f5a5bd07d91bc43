"""Streams and events of the simulated NPU: names and times; all work is done when it is asked for."""

import itertools
import threading
import time
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.devices import Device, index_of

_numbers = itertools.count(1)
_current = threading.local()


class Stream(torch.Stream):
    """A stream: an identity that can be chosen, waited for and asked; it is always idle.

    Args:
        device: the device it belongs to.
        priority: accepted; there is nothing to come before.
    """

    npu_stream: int

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> "Stream":
        """Makes a new stream, different from every other."""
        index_of(device)
        stream = super().__new__(cls, device=DEVICE_TYPE, priority=priority, **kwargs)
        stream.npu_stream = next(_numbers)
        return stream

    def query(self) -> bool:
        """Returns True: all work is done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def wait_event(self, event: torch.Event) -> None:
        """Returns at once: what the event marks is done."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Returns at once: the other stream's work is done."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Marks this moment with the event, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.npu_stream == other.npu_stream

    def __ne__(self, other: object) -> bool:  # torch.Stream has one of its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.npu_stream)

    def __repr__(self) -> str:
        return f"<torch_npu.npu.Stream device=npu:0 npu_stream={self.npu_stream:#x} (simulated)>"


class Event(torch.Event):
    """A moment in a stream: work before it is done as soon as it is recorded.

    Args:
        enable_timing: whether elapsed_time may be asked.
        blocking: accepted; nothing ever waits.
        interprocess: accepted; events of other processes are not to be had.
    """

    _timed: bool
    _moment: float | None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> "Event":
        """Makes an event that is not recorded yet."""
        event = super().__new__(cls, device=DEVICE_TYPE, enable_timing=enable_timing)
        event._timed, event._moment = enable_timing, None
        return event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Marks this moment."""
        self._moment = time.perf_counter()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Returns at once."""

    def query(self) -> bool:
        """Returns True: what was recorded is done."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Returns the milliseconds from this event to the other: time of the host.

        Raises:
            RuntimeError: if an event does not measure time or was not recorded.
        """
        if not isinstance(end_event, Event):
            raise TypeError(f"end_event must be a torch.npu.Event, not {type(end_event).__name__}")
        if not (self._timed and end_event._timed):
            raise RuntimeError("elapsed_time needs events made with enable_timing=True")
        if self._moment is None or end_event._moment is None:
            raise RuntimeError("elapsed_time needs two events that were recorded")
        return (end_event._moment - self._moment) * 1e3

    def __repr__(self) -> str:
        state = "not recorded" if self._moment is None else "recorded"
        return f"<torch_npu.npu.Event {state} (simulated)>"


_default: Stream | None = None


def default_stream(device: Device = None) -> Stream:
    """Returns the stream that is current unless another is chosen."""
    global _default
    index_of(device)
    if _default is None:
        _default = Stream()
    return _default


def current_stream(device: Device = None) -> Stream:
    """Returns the stream that is chosen in this thread."""
    index_of(device)
    chosen: Stream | None = getattr(_current, "stream", None)
    return default_stream() if chosen is None else chosen


def set_stream(stream: Stream | None) -> None:
    """Chooses a stream in this thread; None chooses nothing."""
    if stream is not None:
        _current.stream = stream


class StreamContext:
    """The context manager `with torch.npu.stream(stream):`; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.before: Stream | None = None

    def __enter__(self) -> None:
        self.before = current_stream()
        set_stream(self.stream)

    def __exit__(self, *exception: object) -> None:
        set_stream(self.before)


def stream(stream: Stream | None) -> StreamContext:
    """Returns the context manager that chooses a stream."""
    return StreamContext(stream)
