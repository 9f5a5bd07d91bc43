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
            _register_device(modules["torch_npu.npu"])
        selftest.check_device()
        standin.add_finder(modules)
        _installed = True
    if not probe:
        _say("the NPU of this process is simulated: npu:0 is host memory, operators run on the CPU")
    return True


def _say(sentence: str) -> None:
    print(f"ingot.npusim: {sentence}", file=sys.stderr, flush=True)


def _register_device(module: ModuleType) -> None:
    from ingot.npusim import autocast, fallback, kernels, storage
    from ingot.npusim.bridge import DEVICE_TYPE

    backend_registration._setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=module)
    # `import torch.npu` works on hardware.
    sys.modules[f"torch.{DEVICE_TYPE}"] = module
    everything = torch.library.Library("_", "IMPL", "PrivateUse1")
    everything.fallback(fallback.run_on_host, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.append(everything)
    _add_kernels("PrivateUse1", kernels.KERNELS | fallback.direct_kernels())
    _add_kernels("AutogradPrivateUse1", kernels.DIFFERENTIABLE_KERNELS)
    _add_kernels("AutocastPrivateUse1", autocast.autocast_kernels())
    storage.mend_storage()
    storage.mend_pinning()


def _add_kernels(key: str, kernels: Mapping[str, Callable[..., Any]]) -> None:
    library = torch.library.Library("aten", "IMPL", key)
    for name, kernel in kernels.items():
        library.impl(name, kernel, key)
    _libraries.append(library)
