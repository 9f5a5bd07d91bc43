"""Which tensors may meet in one operator: the device rules of real hardware.

The simulated device shares the host's memory, so mixing would work here, and fail on the real NPU.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.signature import Signature, signature

# Operators that read a CPU tensor of any size beside device tensors: which arguments may be one.
_HOST_ARGUMENTS: dict[str, frozenset[str]] = {
    "aten::index": frozenset({"indices"}),
    "aten::index_put": frozenset({"indices"}),
    "aten::index_put_": frozenset({"indices"}),
    "aten::_index_put_impl_": frozenset({"indices"}),
    "aten::_unsafe_index": frozenset({"indices"}),
    "aten::_unsafe_index_put": frozenset({"indices"}),
    "aten::_pack_padded_sequence": frozenset({"lengths"}),
    "aten::_pack_padded_sequence_backward": frozenset({"batch_sizes"}),
    "aten::_ctc_loss": frozenset({"input_lengths", "target_lengths"}),
    "aten::_ctc_loss_backward": frozenset({"input_lengths", "target_lengths"}),
}

# Operators that take a 0-dim CPU tensor as a number though torch does not tag them as pointwise.
_TAKE_NUMBERS = frozenset(
    {
        "aten::fill",
        "aten::fill_",
        "aten::index_fill",
        "aten::index_fill_",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::masked_fill",
        "aten::masked_fill_",
        "aten::rsub",
        "aten::where",
    }
)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of an argument: itself, or the members of a list, None left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from tensors_in(member)


def check_same_device(op: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError if the operator is given tensors that may not meet.

    As on hardware, a 0-dim CPU tensor counts as a number where a pointwise operator reads it, and a
    few operators read indices or lengths from the host.
    """
    declared = signature(op)
    on_npu = False
    foreign: list[tuple[str, torch.Tensor]] = []
    for name, value in itertools.chain(zip(declared.names, args, strict=False), kwargs.items()):
        for tensor in tensors_in(value):
            if tensor.device.type == DEVICE_TYPE:
                on_npu = True
            else:
                foreign.append((name, tensor))
    if not (on_npu and foreign):
        return
    for name, tensor in foreign:
        if name in declared.written or not _may_stay_on_host(declared, name, tensor):
            raise device_mismatch(tensor.device, f"argument {name!r} of {op}")


def require_npu(where: str, **tensors: torch.Tensor | None) -> None:
    """Raises RuntimeError if a tensor of a kernel written by hand is not on the device."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device.type != DEVICE_TYPE:
            raise device_mismatch(tensor.device, f"argument {name!r} of {where}")


def device_mismatch(device: torch.device, where: str) -> RuntimeError:
    """Returns the error torch raises on hardware, with the place added."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{DEVICE_TYPE}:0 and {device}! ({where})"
    )


def _may_stay_on_host(declared: Signature, name: str, tensor: torch.Tensor) -> bool:
    if tensor.device.type != "cpu":
        return False
    operator = declared.operator
    if name in _HOST_ARGUMENTS.get(operator, ()):
        return True
    return tensor.dim() == 0 and (
        declared.pointwise or operator in _TAKE_NUMBERS or operator.startswith("aten::_foreach_")
    )
