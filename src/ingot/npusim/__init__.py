"""A simulated NPU: runs scripts written for Ascend devices and torch_npu on any machine.

Nothing happens until it is asked for, in one of three ways:

* `python -m ingot.npusim script.py args...` runs one script;
* `INGOT_NPUSIM=1` in the environment serves any program that imports torch;
* `ingot.npusim.install()` in code, before the first use of `npu`.

This package imports torch only when asked, because torch imports `ingot.npusim.autoload` while it
is itself being imported.
"""

__all__ = ["install", "is_installed"]


def install() -> bool:
    """Puts the simulated NPU and the stand-in for torch_npu in place, once per process.

    It stays until the process ends: torch has no way to take a device out again.

    Returns:
        True if the NPU is simulated, False if a real torch_npu is there, which always wins.

    Raises:
        RuntimeError: if the simulation does not fit this torch; it says what failed.

    Example:
        >>> import ingot.npusim, torch
        >>> ingot.npusim.install()
        True
        >>> torch.ones(2, device="npu:0") + 1
        tensor([2., 2.], device='npu:0')
    """
    # First, and alone: with INGOT_NPUSIM=1 torch comes back here while it is being imported, and must
    # not find a half-imported register.
    import torch  # noqa: F401

    from ingot.npusim import register

    return register.install()


def is_installed() -> bool:
    """Tells whether the NPU of this process is the simulated one."""
    import sys

    # Asking must not import torch: without the module that installs, nothing can be installed.
    register = sys.modules.get("ingot.npusim.register")
    return register is not None and bool(register.is_installed())
