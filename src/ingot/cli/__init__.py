"""The `ingot` command: hands the command line to the module of the subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

import ingot

# Each is a module of this package with a `main(arguments: list[str]) -> int`, imported only when it is asked
# for. None imports more than torch before its command line is read: `--help` and `ingot info` work without the rest.
COMMANDS = {
    "info": "versions, backends, and which backend is chosen for which device",
    "kernels": "print the kernels that are emitted for an optimizer",
    "demo": "train one small network with every optimizer; needs matplotlib, rich, scikit-learn",
    "memory": "bytes per parameter on the device and on the host; a picture needs matplotlib",
    "bench": "time the optimizers against other implementations; needs matplotlib, numpy, rich",
    "watch": "draw what optimizer.track_metrics() wrote, name what stands out; needs matplotlib",
}


# Programs that are started as modules, not as subcommands.
PROGRAMS = {
    "selftest --device cuda": "try every optimizer on your hardware: a report in two minutes",
    "npusim script.py": "run a script for Ascend NPUs without one",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; without one, prints the help.

    Args:
        argv: the command line without the program's name; None takes it from the process.

    Returns:
        The exit status: 0 if all went well.
    """
    lines = [f"  {name:<8} {text}" for name, text in COMMANDS.items()]
    lines += ["", *(f"  python -m ingot.{name}: {text}" for name, text in PROGRAMS.items())]
    parser = argparse.ArgumentParser(
        prog="ingot",
        description="Fused PyTorch optimizers.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ingot {ingot.__version__}")
    parser.add_argument(
        "command", nargs="?", choices=list(COMMANDS), metavar="command", help="see below"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="command --help lists them")
    chosen = parser.parse_args(argv)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        command = import_module(f"ingot.cli.{chosen.command}")
    except ImportError as error:
        if "INGOT_ISA" in str(error):
            parser.error(str(error))
        raise
    status: int = command.main(chosen.arguments)
    return status
