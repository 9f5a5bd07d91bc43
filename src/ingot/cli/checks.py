"""What a command checks before it runs: that its packages are installed, and the backend it was given."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from ingot import backends

PACKAGES = {
    "demo": {"matplotlib": "matplotlib", "rich": "rich", "sklearn": "scikit-learn"},
    "memory": {"matplotlib": "matplotlib"},
    "bench": {"matplotlib": "matplotlib", "numpy": "numpy", "rich": "rich"},
    "watch": {"matplotlib": "matplotlib"},
}


def load(command: str, module: str) -> ModuleType:
    """Imports the module that does a command's work; if a package is missing, says what to install.

    The packages are named one by one: an extra needs the name under which Ingot was installed.
    """
    packages: Mapping[str, str] = PACKAGES[command]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = packages.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        raise SystemExit(
            f"ingot {command} needs {missing}, which is not installed: "
            f"pip install {' '.join(packages.values())}"
        ) from error


def backend(name: str) -> str:
    """The type of ``--backend``: the name of a backend that can be used here."""
    try:
        return backends.named(name).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
