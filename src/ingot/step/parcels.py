"""Which parameters are updated together inside backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ingot.step.quick import Quick

# Elements. An update costs about 10 us however small the tensors are, as much as the arithmetic of this many elements:
# smaller parameters wait for each other until they are this many.
WORTH_AN_UPDATE = 16384


@dataclass(eq=False)
class Parcel:
    """Parameters that are updated together, once all of them have their gradients."""

    ordinals: list[int] = field(default_factory=list)
    elements: int = 0
    arrived: list[int] = field(default_factory=list)  # whose gradients are complete
    quick: Quick | None = None  # the last update, if others like it can take the quick path
    quick_for: list[int] = field(default_factory=list)  # and whom that updated
    streams: list[torch.Stream] = field(default_factory=list)  # that the gradients were made on

    def add(self, ordinal: int, device: torch.device) -> None:
        """A gradient is complete, on the current stream of its device."""
        self.arrived.append(ordinal)
        if device.type != "cpu":
            stream = torch.accelerator.current_stream(device)
            self.streams += [] if stream in self.streams else [stream]

    def wait(self) -> None:
        """Let the current stream wait for gradients that were made on others."""
        for stream in self.streams:
            current = torch.accelerator.current_stream(stream.device)
            if stream != current:
                current.wait_stream(stream)

    def clear(self) -> None:
        """All gradients were used, or dropped."""
        self.arrived.clear()
        self.streams.clear()


def parcels_of(params: Sequence[Tensor], ordinals: Iterable[int]) -> dict[int, Parcel]:
    """The parcel of each parameter: large ones alone, small ones with the next small ones on their device.

    Sizes are those of whole tensors, also of sharded ones: all processes make the same parcels.
    """
    parcels: dict[int, Parcel] = {}
    begun: dict[torch.device, Parcel] = {}
    for ordinal in ordinals:
        param = params[ordinal]
        large = param.numel() >= WORTH_AN_UPDATE
        parcel = Parcel() if large else begun.setdefault(param.device, Parcel())
        parcel.ordinals.append(ordinal)
        parcel.elements += param.numel()
        parcels[ordinal] = parcel
        if not large and parcel.elements >= WORTH_AN_UPDATE:
            del begun[param.device]
    return parcels
