"""Kernels beyond the fallback: memory, metadata, copies, convolution, recurrent cells."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.npusim.bridge import is_npu, to_host, to_npu
from ingot.npusim.devices import check_index
from ingot.npusim.placement import require_npu

_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_set = torch.ops.aten.set_.source_Storage_storage_offset


def set_to(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Points a simulated tensor to the memory of another one, in place."""
    require_npu("set_", source=source)
    result: torch.Tensor = _set.redispatch(
        _CPU_KEYS,
        tensor,
        source.untyped_storage(),
        source.storage_offset(),
        source.size(),
        source.stride(),
    )
    return result


def _set_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Any:
    size = storage.nbytes() // tensor.element_size()
    return _set.redispatch(_CPU_KEYS, tensor, storage, 0, [size], [1])


def _set_empty(tensor: torch.Tensor) -> torch.Tensor:
    return set_to(tensor, to_npu(torch.empty(0, dtype=tensor.dtype)))


def _empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    check_index(device)
    memory_format = memory_format or torch.contiguous_format
    return to_npu(torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    check_index(device)
    return to_npu(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    host = to_host(target) if is_npu(target) else target
    host.copy_(to_host(source) if is_npu(source) else source)
    return target


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    return _copy(target, source)


def _resize(
    tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> Any:
    count = math.prod(size)
    needed = (tensor.storage_offset() + count) * tensor.element_size()
    if needed <= tensor.untyped_storage().nbytes():
        op = torch.ops.aten.resize_.default
        return op.redispatch(_CPU_KEYS, tensor, size, memory_format=memory_format)
    # Memory that came through DLPack cannot grow: move to larger memory, and keep what was there.
    larger = torch.empty(size, dtype=tensor.dtype, device="cpu")
    kept = min(tensor.numel(), count)
    if kept:
        larger.view(-1)[:kept].copy_(to_host(tensor).reshape(-1)[:kept])
    return set_to(tensor, to_npu(larger))


def _convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    require_npu("convolution", input=input, weight=weight, bias=bias)
    host = [None if t is None else to_host(t) for t in (input, weight, bias)]
    return to_npu(torch.ops.aten.convolution(*host, *geometry))


def _convolution_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *geometry_and_mask: Any
) -> tuple[torch.Tensor | None, ...]:
    require_npu("convolution_backward", grad=grad, input=input, weight=weight)
    *geometry, mask = geometry_and_mask
    transposed, groups = geometry[3], geometry[5]
    out_channels = weight.shape[1] * groups if transposed else weight.shape[0]
    results = torch.ops.aten.convolution_backward(
        to_host(grad),
        to_host(input),
        to_host(weight),
        [out_channels] if mask[2] else None,
        *geometry,
        list(mask),
    )
    return tuple(None if result is None else to_npu(result) for result in results)


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Nothing to remember: no stream is ever behind."""


def _metadata_only(op: Any) -> Callable[..., Any]:
    """Kernels that touch no element: the CPU's kernel runs on the simulated tensor itself."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(_CPU_KEYS, *args, **kwargs)

    return kernel


_aten = torch.ops.aten

KERNELS: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "copy_": _copy,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from,
    "resize_": _resize,
    "record_stream": _record_stream,
    "set_": _set_empty,
    "set_.source_Tensor": set_to,
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _metadata_only(_set),
    "as_strided": _metadata_only(_aten.as_strided.default),
    "view": _metadata_only(_aten.view.default),
    "_reshape_alias": _metadata_only(_aten._reshape_alias.default),
    "unfold": _metadata_only(_aten.unfold.default),
    "view_as_real": _metadata_only(_aten.view_as_real.default),
    "view_as_complex": _metadata_only(_aten.view_as_complex.default),
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = input_gates + hidden_gates
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, candidate, leave = gates.chunk(4, 1)
    new_cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * new_cell.tanh(), new_cell, gates


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    input_reset, input_update, input_new = input_gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hidden - new), input_gates


# Accelerators get the fused cells, which the CPU does not have. Written in torch operators above
# autograd, they need no backward of their own.
DIFFERENTIABLE_KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_gru_cell": _gru_cell,
}
