"""Runs a script on the simulated NPU: `python -m ingot.npusim [-m module | script.py] args...`."""

import os
import runpy
import sys

from ingot.npusim import install
from ingot.npusim.autoload import VARIABLE

USAGE = """\
usage: python -m ingot.npusim script.py [args...]
       python -m ingot.npusim -m module [args...]

Runs the script or module as `python` would, with a simulated NPU and a stand-in for torch_npu.
A torch_npu that is installed is used instead. `--help` lists what is simulated."""


def main(argv: list[str]) -> int | str:
    """Runs what the arguments name, in this process.

    Args:
        argv: `-m`, a module and its arguments, or a script and its arguments.

    Returns:
        The exit code or message; a script that leaves through sys.exit never returns here.
    """
    if argv[:1] in (["-h"], ["--help"]):
        from ingot.npusim.describe import describe

        print(f"{USAGE}\n\n{describe()}")
        return 0
    as_module = argv[:1] == ["-m"]
    arguments = argv[1:] if as_module else argv
    if not arguments or (not as_module and arguments[0].startswith("-")):
        print(USAGE, file=sys.stderr)
        return 2
    target = arguments[0]
    if not as_module and not os.path.exists(target):
        return f"python -m ingot.npusim: there is no file {target!r}"
    # For processes the script starts, such as the workers of a DataLoader.
    os.environ[VARIABLE] = "1"
    install()
    sys.argv = arguments
    if as_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.abspath(target))
        runpy.run_path(target, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
