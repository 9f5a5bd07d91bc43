"""What torch calls when it is imported: installs the simulated NPU if INGOT_NPUSIM asks for it.

torch loads the entry points of the group `torch.backends` at the end of its own import, in every
program of an environment that has ingot in it. So this file imports nothing but `os` at the top.
"""

import os

VARIABLE = "INGOT_NPUSIM"


def autoload() -> None:
    """Installs the simulated NPU if INGOT_NPUSIM is 1; does nothing if it is unset, empty or 0.

    Raises:
        ValueError: for any other value: to ignore what somebody asked for would hide a slip.
    """
    wish = os.environ.get(VARIABLE, "")
    if wish in ("", "0"):
        return
    if wish != "1":
        raise ValueError(f"{VARIABLE} must be 1 (simulate an NPU), 0 or unset, not {wish!r}")
    from ingot.npusim import register

    register.install()
