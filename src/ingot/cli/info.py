"""`ingot info`: versions, which backends are there and why, and which one each device gets."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

import torch

import ingot
from ingot import backends
from ingot.backends.native import NATIVE


def main(arguments: list[str]) -> int:
    """Prints the report, as text or with ``--json`` as one JSON object."""
    parser = argparse.ArgumentParser(prog="ingot info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    as_json = parser.parse_args(arguments).json
    report = collect()
    print(json.dumps(report, indent=2) if as_json else render(report))
    return 0


def collect() -> dict[str, Any]:
    """Everything the report says, as plain data."""
    chosen = []
    for device in devices():
        name, why = backends.choose_for(device)
        chosen.append({"device": device.type, "backend": name, "why": why})
    return {
        "versions": {
            "ingot": ingot.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "instructions": instructions(),
        "backends": [backend._asdict() for backend in backends.describe()],
        "chosen": chosen,
    }


def devices() -> list[torch.device]:
    """The kinds of device this process can use: the CPU, and the accelerator if there is one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return [torch.device("cpu"), *([] if accelerator is None else [accelerator])]


def instructions() -> str | None:
    """The instruction set that the native core uses on this processor; None without the core."""
    if NATIVE.unavailable() is not None:
        return None
    from ingot import _native

    return _native.isa()


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    versions = report["versions"]
    lines = [
        f"ingot {versions['ingot']}, torch {versions['torch']}, Python {versions['python']}",
        f"{report['platform']}, {report['threads']} torch threads",
        "",
        "Backends, in the order they are tried:",
    ]
    for backend in report["backends"]:
        if backend["available"]:
            # Only the native core is compiled for one kind of processor.
            used = (
                f", instruction set {report['instructions']}" if backend["name"] == "native" else ""
            )
            lines.append(f"  {backend['name']:<10} yes  {backend['devices']}{used}")
        else:
            lines.append(f"  {backend['name']:<10} no   {backend['devices']}: {backend['reason']}")
            lines.append(f"{'':18}to get it: {backend['hint']}")
    lines += ["", "Chosen when no backend is named:"]
    for choice in report["chosen"]:
        lines.append(f"  {choice['device']:<10} {choice['backend']}: {choice['why']}")
    return "\n".join(lines)
