"""Installs the simulated NPU: registers the device with torch, and the stand-in with Python."""

import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from ingot.npusim import selftest

_lock = threading.RLock()
_installed = False
# A library takes its kernels back when it is collected.
_libraries: list[torch.library.Library] = []


def is_installed() -> bool:
    """Tells whether the NPU of this process is the simulated one."""
    return _installed


def install(probe: bool = False) -> bool:
    """Installs the simulated NPU, unless it or a real torch_npu is there; see ingot.npusim.

    Args:
        probe: this is the trial in another process; don't start a further one, and say nothing.
    """
    global _installed
    with _lock:
        if _installed:
            return True
        with selftest.explained("loading the kernels"):
            from ingot.npusim import standin
        real = standin.find_real()
        if real is not None:
            _say(f"nothing is simulated, because there is a torch_npu: {real}")
            return False
        selftest.check_torch()
        if not (probe or selftest.is_tested()):
            selftest.probe()
        modules = standin.make_modules()
        with selftest.explained("registering the device"):
            _register_device(modules)
        selftest.check_device()
        modules["torch_npu.npu"].reset_peak_memory_stats()
        modules["torch_npu.npu"].reset_accumulated_memory_stats()
        standin.add_finder(modules)
        _installed = True
    if not probe:
        _say("the NPU of this process is simulated: npu:0 is host memory, operators run on the CPU")
    return True


def _say(sentence: str) -> None:
    print(f"ingot.npusim: {sentence}", file=sys.stderr, flush=True)


def _register_device(modules: Mapping[str, ModuleType]) -> None:
    from ingot.npusim import autocast, bridge, fallback, kernels, leaving, memory, operator_library
    from ingot.npusim.bridge import DEVICE_TYPE

    name = f"torch_{DEVICE_TYPE}.{DEVICE_TYPE}"
    backend_registration._setup_privateuseone_for_python_backend(
        DEVICE_TYPE, backend_module=modules[name]
    )
    # `import torch.npu.amp` works on hardware.
    for path, module in modules.items():
        if path == name or path.startswith(f"{name}."):
            sys.modules[path.replace(name, f"torch.{DEVICE_TYPE}", 1)] = module
    everything = torch.library.Library("_", "IMPL", "PrivateUse1")
    everything.fallback(fallback.run_on_host, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.append(everything)
    _add_kernels("PrivateUse1", kernels.KERNELS | fallback.direct_kernels())
    _add_kernels("AutogradPrivateUse1", kernels.DIFFERENTIABLE_KERNELS)
    _add_kernels("AutocastPrivateUse1", autocast.autocast_kernels())
    _libraries.append(operator_library.define_operators())
    bridge.watchers.append(memory.LEDGER.enter)
    leaving.register()
    _mend_torch()


def _mend_torch() -> None:
    """Makes the few changes to Python classes of torch that a device written in Python needs."""
    from ingot.npusim import process_group, storage, typed_tensors

    storage.mend_storage()
    storage.mend_resize()
    storage.mend_pinning()
    storage.mend_synchronize()
    typed_tensors.mend_type()
    process_group.register_backend()
    process_group.mend_ddp()


def _add_kernels(key: str, kernels: Mapping[str, Callable[..., Any]]) -> None:
    library = torch.library.Library("aten", "IMPL", key)
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)
    _libraries.append(library)
