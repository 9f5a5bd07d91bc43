"""What a command checks before it runs: its packages, the backend it was given, and where it is to write."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ingot import backends

PACKAGES = {
    "demo": {"matplotlib": "matplotlib", "rich": "rich", "sklearn": "scikit-learn"},
    "memory": {"matplotlib": "matplotlib"},
    "bench": {"matplotlib": "matplotlib", "numpy": "numpy", "rich": "rich"},
    "watch": {"matplotlib": "matplotlib"},
}
# Of what matplotlib can write; that differs from one version to the next.
PICTURES = (".png", ".pdf", ".svg", ".eps", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")


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


def picture(text: str) -> Path:
    """The type of ``--output``: a file to draw into, whose folder is there or can be made."""
    path = Path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(PICTURES)}")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    refuse_folder(text, path.parent)
    return path


def folder(text: str) -> Path:
    """The type of an option that names a folder, which is there or can be made."""
    refuse_folder(text, Path(text))
    return Path(text)


def refuse_folder(text: str, path: Path) -> None:
    """Raise if a folder can neither be written to nor be made."""
    nearest = next((each for each in (path, *path.parents) if os.path.exists(each)), Path())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text!r}: {nearest} is not a folder that can be written to"
        )
