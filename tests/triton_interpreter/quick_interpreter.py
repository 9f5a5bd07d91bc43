"""Makes Triton's interpreter (3.7) several times faster.

It patches ``triton.language`` again in every call of a device function; once per launch is enough.
"""

from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patch, _call = interpreter._patch_lang, interpreter.GridExecutor.__call__
_patched: set[frozenset[str]] = set()


class _Nothing:
    def restore(self) -> None:
        """What was patched before the launch is restored after it."""


def _once(function: Any) -> Any:
    modules = [value for value in function.__globals__.values() if type(value) is type(tl)]
    known = {"tl": tl, "core": tl.core}
    names = frozenset(name for name, module in known.items() if module in modules)
    if names in _patched:
        return _Nothing()
    _patched.add(names)
    return _patch(function)


def _launch(self: Any, *args: Any, **kwargs: Any) -> Any:
    _patched.clear()
    try:
        return _call(self, *args, **kwargs)
    finally:
        _patched.clear()


def install() -> None:
    """Change the interpreter of this process."""
    interpreter._patch_lang, interpreter.GridExecutor.__call__ = _once, _launch
