"""Copies between an accelerator and the host: started early, waited for late, in an order that is always right."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

HOST = torch.device("cpu")
Ticket = Any  # stands for a copy under way; None for one that is done


class Transfer(Protocol):
    """What states in host memory need of a device.

    Copies of one device happen in the order in which they are asked for, whatever direction they go in.
    """

    def buffer(self, like: Tensor) -> Tensor:
        """Host memory for copies of a tensor, laid out like it."""

    def fetch(self, source: Tensor, target: Tensor) -> Ticket:
        """Start copying to the host, after everything the device has been asked for so far."""

    def is_done(self, ticket: Ticket) -> bool:
        """Whether a copy to the host has arrived, without waiting for it."""

    def wait(self, ticket: Ticket) -> None:
        """Return when a copy to the host has arrived."""

    def send(self, source: Tensor, target: Tensor) -> None:
        """Start copying to the device, after everything the device has been asked for so far."""

    def settle(self, device: torch.device) -> None:
        """Let everything the device is asked for from now on come after the copies to it."""


class StreamTransfer:
    """Copies on a stream of their own, beside the computation of a device.

    A device without streams, or without events that the host can wait for, gets ordinary copies.
    """

    def __init__(self) -> None:
        self.streams: dict[torch.device, torch.Stream | None] = {}

    def buffer(self, like: Tensor) -> Tensor:
        """Pinned memory where there is any: only that can be copied to and from in the background."""
        try:
            return torch.empty_like(like, device=HOST, pin_memory=True)
        except RuntimeError:
            return torch.empty_like(like, device=HOST)

    def fetch(self, source: Tensor, target: Tensor) -> Ticket:
        """Start copying to the host."""
        stream = self._stream(source.device)
        if stream is None:
            target.copy_(source)
            return None
        stream.wait_stream(torch.accelerator.current_stream(source.device))
        with stream:
            target.copy_(source, non_blocking=True)
        return stream.record_event()

    def is_done(self, ticket: Ticket) -> bool:
        """Ask the event behind the copy."""
        return ticket is None or bool(ticket.query())

    def wait(self, ticket: Ticket) -> None:
        """Wait for the event behind the copy."""
        if ticket is not None:
            ticket.synchronize()

    def send(self, source: Tensor, target: Tensor) -> None:
        """Start copying to the device."""
        stream = self._stream(target.device)
        if stream is None:
            target.copy_(source)
            return
        stream.wait_stream(torch.accelerator.current_stream(target.device))
        with stream:
            target.copy_(source, non_blocking=True)

    def settle(self, device: torch.device) -> None:
        """Let the current stream of the device wait for the stream of the copies; the host does not wait."""
        stream = self._stream(device)
        if stream is not None:
            torch.accelerator.current_stream(device).wait_stream(stream)

    def _stream(self, device: torch.device) -> torch.Stream | None:
        """The stream of a device; None if it has none that can be waited for."""
        if device not in self.streams:
            self.streams[device] = new_stream(device)
        return self.streams[device]


def new_stream(device: torch.device) -> torch.Stream | None:
    """A stream beside the current one, tried out; None where that does not work."""
    try:
        stream = torch.Stream(device=device)
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            event = stream.record_event()
        event.synchronize()
        event.query()
    except (RuntimeError, TypeError, AttributeError):
        return None
    return stream


STREAMS = StreamTransfer()  # one stream per device serves all optimizers
