"""The kernel behind every operator: CPU aliases in, the CPU's kernel, simulated tensors out."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE, is_npu, to_host, to_npu
from ingot.npusim.devices import check_index
from ingot.npusim.kernels import set_to
from ingot.npusim.placement import check_same_device, tensors_in
from ingot.npusim.signature import Signature, signature

# Operators called as they are. torch would turn them into their out= forms, and these two resize that
# tensor on the way, with a warning about what the user did not do (torch 2.13).
DIRECT = ("mse_loss", "smooth_l1_loss")

# Results that stay on the host on hardware too: the position in the operator's results.
_HOST_RESULTS = {"aten::_pack_padded_sequence": (1,)}


def run_on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Serves any operator for which the simulated device has no kernel of its own."""
    check_same_device(op, args, kwargs)
    declared = signature(op)
    args = _numbers_as_tensors(declared, args)
    try:
        return _Call(declared.outs, replace=False).run(op, args, kwargs)
    except RuntimeError as error:
        # An out= tensor of the wrong size: memory that came through DLPack cannot grow.
        if not declared.outs or "not resizable" not in str(error):
            raise
        return _Call(declared.outs, replace=True).run(op, args, kwargs)


def direct_kernels() -> dict[str, Callable[..., Any]]:
    """Returns the kernels of the operators in DIRECT, by name."""
    return {
        name: functools.partial(run_on_host, getattr(torch.ops.aten, name).default)
        for name in DIRECT
    }


def _numbers_as_tensors(declared: Signature, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Restores tensors from numbers: torch hands over those it wrapped itself as plain numbers.

    A wrapped number is a double that does not promote. The nearest thing is a 0-dim tensor of the
    default type, and of float64 where it meets float64, so that no digit is lost.
    """
    wrapped = [
        is_tensor and isinstance(value, (bool, int, float, complex))
        for is_tensor, value in zip(declared.tensors, args, strict=False)
    ]
    if not any(wrapped):
        return args
    double = any(t.dtype in (torch.float64, torch.complex128) for t in tensors_in(args))
    return tuple(
        _tensor(value, double) if is_number else value
        for value, is_number in zip(args, wrapped, strict=True)
    )


def _tensor(number: complex, double: bool) -> torch.Tensor:
    if double and isinstance(number, float):
        return torch.tensor(number, dtype=torch.float64)
    if double and isinstance(number, complex):
        return torch.tensor(number, dtype=torch.complex128)
    return torch.tensor(number)


class _Call:
    """One call of one operator: remembers which host alias stands for which argument."""

    def __init__(self, outs: frozenset[str], replace: bool) -> None:
        self.outs = outs  # names of the out= arguments
        self.replace = replace  # hand in empty out= tensors, and take over what becomes of them
        self.standing_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.replaced: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wanted = kwargs.get("device")
        stays_on_host = isinstance(wanted, torch.device) and wanted.type == "cpu"
        result = op(
            *(self.down(value) for value in args),
            **{name: self.down(value, name in self.outs) for name, value in kwargs.items()},
        )
        for host, tensor in self.replaced:
            if host.shape == tensor.shape:
                to_host(tensor).copy_(host)
            else:
                set_to(tensor, to_npu(host))
        if stays_on_host:
            return result
        on_host = _HOST_RESULTS.get(op._schema.name)
        if on_host is not None:
            return tuple(r if i in on_host else self.up(r) for i, r in enumerate(result))
        return self.up(result)

    def down(self, value: Any, out: bool = False) -> Any:
        """Turns an argument into what the CPU kernel is given."""
        if is_npu(value):
            if out and (self.replace or value.numel() == 0):
                host = torch.empty(0, dtype=value.dtype)
                self.replaced.append((host, value))
            else:
                host = to_host(value)
            # Keeps the alias alive, too: an id is only unique among the living.
            self.standing_for[id(host)] = (host, value)
            return host
        if isinstance(value, (list, tuple)):
            return type(value)(self.down(member, out) for member in value)
        if isinstance(value, torch.device) and value.type == DEVICE_TYPE:
            check_index(value)
            return torch.device("cpu")
        return value

    def up(self, value: Any) -> Any:
        """Turns a result of the CPU kernel into what the caller is given."""
        if isinstance(value, torch.Tensor):
            if id(value) in self.standing_for:
                return self.standing_for[id(value)][1]  # in place or out=: the argument itself
            if value.layout is not torch.strided:
                raise NotImplementedError(
                    f"the simulated NPU (ingot.npusim) has no {value.layout} tensors, only strided"
                )
            return to_npu(value) if value.device.type == "cpu" else value
        if isinstance(value, (list, tuple)):
            return type(value)(self.up(member) for member in value)
        return value
