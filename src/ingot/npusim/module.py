"""A module that says it is simulated when it is asked for something it does not have."""

import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


class SimulatedModule(types.ModuleType):
    """Stands for a module of torch_npu; holds only the names the simulation has.

    Args:
        name: the module's full name, such as `torch_npu.npu`.
        doc: what it is, in one sentence.
        contents: its names and their values.
        on_import: what to do when the module is imported, once.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        contents: Mapping[str, Any],
        on_import: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name, doc)
        self._on_import = on_import
        # A package to the import system, so that `from torch_npu.optim import X` asks our finder
        # about X and gets an error that explains, instead of Python's own.
        self.__path__: list[str] = []
        self.__file__ = __file__
        self.__all__ = [key for key in contents if not key.startswith("_")]
        vars(self).update(contents)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(missing(self.__name__, name))


def missing(module: str, name: str) -> str:
    """Returns the message for a name which the simulation does not have."""
    kind = "operator " if name.startswith("npu_") else ""
    return (
        f"module {module!r} is simulated by ingot.npusim and has no {kind}{name!r}; "
        "`python -m ingot.npusim --help` lists what is simulated"
    )
