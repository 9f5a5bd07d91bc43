"""Lets `import torch_npu` come before `import torch` under INGOT_NPUSIM=1.

torch installs the simulation while it is imported; before that, nobody knows a torch_npu. The file
ingot_npusim.pth, which Python reads when it starts, calls this if the variable asks for it.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "torch_npu"


class _EarlyFinder(MetaPathFinder):
    """Answers the first question for torch_npu by importing torch, and none after that.

    It stays in sys.meta_path: Python goes through that list while it asks, and would skip the next
    finder if this one took itself out.
    """

    def __init__(self) -> None:
        self.asked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME or self.asked:
            return None
        self.asked = True
        if "torch" in sys.modules:  # it was imported first, and has installed what was asked for
            return None
        import torch  # noqa: F401

        return importlib.util.find_spec(NAME)


def add_finder() -> None:
    """Adds the finder once, after all others: a torch_npu that is installed is found before."""
    if not any(isinstance(finder, _EarlyFinder) for finder in sys.meta_path):
        sys.meta_path.append(_EarlyFinder())
