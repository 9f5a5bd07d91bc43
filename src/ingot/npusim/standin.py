"""The stand-in for torch_npu: its modules, and the finder through which Python imports them.

The finder sits at the end of sys.meta_path, so a torch_npu that is installed is found before it. No
file or folder called torch_npu exists: other libraries look for one, and would move to it unasked.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ingot.npusim import transfer
from ingot.npusim.amp import make_amp_module, make_amp_parts
from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.device_module import make_device_module, make_random_module
from ingot.npusim.module import SimulatedModule, missing
from ingot.npusim.operator_library import named_operators
from ingot.npusim.utils_module import make_utils_module

NAME = "torch_npu"


def find_real() -> str | None:
    """Returns where a torch_npu that is not ours comes from, or None if there is none."""
    loaded = sys.modules.get(NAME)
    if isinstance(loaded, SimulatedModule):
        return None
    if loaded is not None:
        return str(getattr(loaded, "__file__", None) or loaded)
    spec = importlib.util.find_spec(NAME)
    if spec is None or isinstance(spec.loader, _Finder):
        return None
    return str(spec.origin or list(spec.submodule_search_locations or ()))


class _OptimModule(SimulatedModule):
    """torch_npu.optim: takes Ingot's optimizers when they are asked for, not before."""

    def __getattr__(self, name: str) -> Any:
        from ingot import optim

        if name in optim.__all__:
            return getattr(optim, name)
        if name == "__all__":
            return list(optim.__all__)
        return super().__getattr__(name)

    def __dir__(self) -> list[str]:
        from ingot import optim

        return [*super().__dir__(), *optim.__all__]


def make_modules() -> dict[str, SimulatedModule]:
    """Builds the modules of the stand-in, by full name."""
    amp_parts = make_amp_parts()
    amp = make_amp_module(amp_parts)
    random, utils = make_random_module(), make_utils_module()
    npu = make_device_module(amp=amp, random=random, utils=utils)
    optim = _OptimModule(f"{NAME}.optim", "Ingot's optimizers under torch_npu's names.", {})
    del optim.__all__  # __getattr__ has the real one
    # Not among the contents of contrib: to import it changes torch, to look at contrib must not.
    transfer_to_npu = SimulatedModule(
        f"{NAME}.contrib.transfer_to_npu",
        "Lets a script written for CUDA run on the simulated NPU; importing it is enough.",
        {},
        on_import=transfer.transfer,
    )
    contrib = SimulatedModule(f"{NAME}.contrib", "Helpers of torch_npu.", {})
    version = torch.__version__.split("+")[0] + "+ingot.npusim"
    contents: dict[str, Any] = {"npu": npu, "optim": optim, "contrib": contrib}
    contents |= named_operators() | {"__version__": version}
    root = SimulatedModule(NAME, "A stand-in for torch_npu, by ingot.npusim.", contents)
    modules = (root, npu, amp, *amp_parts, random, utils, optim, contrib, transfer_to_npu)
    return {module.__name__: module for module in modules}


class _Finder(MetaPathFinder, Loader):
    """Finds and loads the modules of the stand-in."""

    def __init__(self, modules: Mapping[str, SimulatedModule]) -> None:
        self.modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.modules:
            return ModuleSpec(fullname, self, origin="ingot.npusim", is_package=True)
        parent, _, name = fullname.rpartition(".")
        if parent in self.modules or parent == f"torch.{DEVICE_TYPE}":
            # Without `name=`: with it, `from torch_npu import x` would drop this message.
            raise ModuleNotFoundError(missing(parent, name))
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Runs what the module does on import; it was built with its contents."""
        run = self.modules[module.__name__]._on_import
        if run is not None:
            run()


def add_finder(modules: Mapping[str, SimulatedModule]) -> None:
    """Lets `import torch_npu` find the stand-in, after all other places have been tried."""
    sys.meta_path.append(_Finder(modules))
