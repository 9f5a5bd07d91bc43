"""The `ingot` command: hands the command line to the module of the subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

# Each is a module of this package with a `main(arguments: list[str]) -> int`, imported only when
# it is asked for: `ingot info` must work where matplotlib or scikit-learn are not installed.
COMMANDS = {
    "info": "versions, backends, and which backend is chosen for which device",
    "demo": "train one small network with every optimizer; needs ingot[demo]",
    "bench": "time the optimizers against other implementations; needs ingot[bench]",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand.

    Args:
        argv: the command line without the program's name; None takes it from the process.

    Returns:
        The exit status: 0 if all went well.
    """
    parser = argparse.ArgumentParser(
        prog="ingot",
        description="Fused PyTorch optimizers.",
        epilog="\n".join(f"  {name:<6} {text}" for name, text in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="command", help="see below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="command --help lists them")
    chosen = parser.parse_args(argv)
    command = import_module(f"ingot.cli.{chosen.command}")
    status: int = command.main(chosen.arguments)
    return status
