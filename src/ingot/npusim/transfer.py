"""torch_npu.contrib.transfer_to_npu: lets a script written for CUDA run on the (simulated) NPU.

It replaces what torch_npu says it replaces: `.cuda()` and `torch.cuda.*`, devices called `cuda` in
the arguments of functions that take a device, the backend `nccl`, and torch.jit.script, which it
switches off. `torch.device("cuda")` itself stays what it is.
"""

import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from ingot.npusim.bridge import DEVICE_TYPE

# fmt: off
_FACTORIES = (
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like",
    "empty_strided", "eye", "frombuffer", "from_file", "full", "full_like", "hamming_window",
    "hann_window", "kaiser_window", "linspace", "load", "logspace", "normal", "ones", "ones_like",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "range",
    "scalar_tensor", "set_default_device", "sparse_coo_tensor", "sparse_csr_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "zeros_like",
)
_TENSOR_METHODS = (
    "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros",
    "pin_memory", "to",
)
_CUDA_FUNCTIONS = (
    "can_device_access_peer", "current_stream", "default_stream", "get_device_capability",
    "get_device_name", "get_device_properties", "get_rng_state", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats",
    "memory_summary", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_memory_stats", "set_device", "set_rng_state", "synchronize", "utilization",
)
# fmt: on
_DEVICE_ARGUMENTS = ("device", "device_type", "map_location", "device_id", "output_device")

_transferred = False


def _renamed(value: Any) -> Any:
    """Returns a device argument that means the NPU where it meant CUDA; anything else as it is."""
    if isinstance(value, str) and value.split(":")[0] == "cuda":
        return value.replace("cuda", DEVICE_TYPE, 1)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device(DEVICE_TYPE if value.index is None else f"{DEVICE_TYPE}:{value.index}")
    if isinstance(value, dict):  # map_location
        return {_renamed(key): _renamed(target) for key, target in value.items()}
    return value


def _translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that devices among its arguments mean the NPU where they meant CUDA."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(
            _renamed(value) if isinstance(value, (str, torch.device)) else value for value in args
        )
        for name in _DEVICE_ARGUMENTS:
            if name in kwargs:
                kwargs[name] = _renamed(kwargs[name])
        if isinstance(kwargs.get("device_ids"), (list, tuple)):
            kwargs["device_ids"] = [_renamed(value) for value in kwargs["device_ids"]]
        return function(*args, **kwargs)

    return call


def _with_hccl(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of torch.distributed so that `nccl` means `hccl`."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, args, strict=False)) | kwargs
        backend = named.get("backend")
        if isinstance(backend, str):
            parts = [part.replace("nccl", "hccl") for part in backend.lower().split(",")]
            named["backend"] = ",".join(_renamed(part) for part in parts)
        named = {
            name: _renamed(value) if name in _DEVICE_ARGUMENTS else value
            for name, value in named.items()
        }
        return function(**named)

    return call


def _wrap(owner: Any, names: tuple[str, ...], wrapper: Callable[..., Any] = _translated) -> None:
    for name in names:
        function = getattr(owner, name, None)
        if function is not None:
            setattr(owner, name, wrapper(function))


def _script(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns what it is given: torch.jit.script cannot read functions that were replaced."""
    return obj


def _patch_cuda(modules: Mapping[str, types.ModuleType]) -> None:
    """Puts the names of torch.npu and its modules into torch.cuda and its modules."""
    for path, module in modules.items():
        target = sys.modules.get(path.replace(f"torch.{DEVICE_TYPE}", "torch.cuda", 1))
        if target is None:
            continue
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                setattr(target, name, value)
    cuda: Any = torch.cuda
    _wrap(cuda, _CUDA_FUNCTIONS)
    cuda.device = _device_class()
    cuda.DoubleTensor = cuda.FloatTensor  # as torch_npu has it: few NPUs know float64


def _device_class() -> type:
    from ingot.npusim import devices

    class device(devices.device):
        """torch.npu.device, which takes `cuda` for `npu`."""

        def __init__(self, device: Any) -> None:
            super().__init__(_renamed(device))

    return device


def _patch_classes() -> None:
    tensor: Any = torch.Tensor
    module: Any = torch.nn.Module
    _wrap(tensor, _TENSOR_METHODS)
    tensor.cuda = tensor.npu
    tensor.is_cuda = tensor.is_npu
    _wrap(module, ("to", "to_empty"))
    module.cuda = module.npu
    constructors: list[Any] = [torch.autocast, torch.amp.GradScaler, DeviceContext]
    constructors += [torch.nn.parallel.DistributedDataParallel, torch.utils.data.DataLoader]
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        constructors.append(FullyShardedDataParallel)
    for constructor in constructors:
        _wrap(constructor, ("__init__",))


def transfer() -> None:
    """Replaces the names; what torch_npu does when `transfer_to_npu` is imported. Once."""
    global _transferred
    if _transferred:
        return
    _transferred = True
    warnings.warn(
        "transfer_to_npu (simulated by ingot.npusim): torch.cuda and devices called cuda now mean "
        "the simulated NPU, nccl means hccl, torch.cuda.DoubleTensor makes float32, and "
        "torch.jit.script returns what it is given",
        ImportWarning,
        stacklevel=2,
    )
    prefix = f"torch.{DEVICE_TYPE}"
    _patch_cuda(
        {
            path: m
            for path, m in sys.modules.items()
            if path == prefix or path.startswith(f"{prefix}.")
        }
    )
    _device_constructors()  # remembers the functions as they are: `with torch.device(...)` needs them
    _wrap(torch, _FACTORIES)
    _patch_classes()
    distributed: Any = torch.distributed
    if distributed.is_available():
        from torch.distributed import device_mesh

        _wrap(distributed, ("init_process_group", "new_group"), _with_hccl)
        _wrap(device_mesh, ("init_device_mesh",))
        distributed.init_device_mesh = device_mesh.init_device_mesh
        distributed.is_nccl_available = distributed.is_hccl_available
    jit: Any = torch.jit
    jit.script = jit.script_method = _script
