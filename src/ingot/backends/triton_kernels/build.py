"""Makes functions of emitted text, and compiles them before a step is committed."""

from __future__ import annotations

import linecache
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch

from ingot.backends.triton_kernels import emit
from ingot.backends.triton_kernels.between import between
from ingot.backends.triton_kernels.tile import Types
from ingot.declare.formula import Formula
from ingot.declare.live import formula as formula_of
from ingot.declare.spec import Variant

THREADS = 128  # of a program; see layout.BLOCKS
# Triton's own switch: kernels are then run as Python on the CPU, to find out what they compute.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def options(kind: str = "", warp: int = 0) -> dict[str, Any]:
    """What the compiler is told for a kind of device ("cuda" or another) and its threads per warp.

    No product and sum may become one rounding: results would differ from those of other backends. The default of that
    differs between versions of Triton.
    """
    told = {"num_warps": THREADS // warp if warp else 4, "enable_fp_fusion": False}
    # Left to itself, ptxas spills two registers of a kernel of LAMB to make room for one more program.
    return {**told, "maxnreg": 128} if kind == "cuda" else told


@cache
def options_here() -> dict[str, Any]:
    """The same for the device of this machine."""
    if INTERPRETED:
        return options()
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return options(target.backend, target.warp_size)


def texts(formula: Formula, types: Types, loaded: frozenset[str]) -> dict[str, str]:
    """The text of all kernels of a variant, by what each is for."""
    if formula.optimizer.finish is None:
        return {"elementwise": emit.elementwise(formula, types, loaded)}
    advance = {"advance": emit.advance(formula, types, loaded)} if types.in_blocks else {}
    return {
        **advance,
        "first": emit.first(formula, types, loaded),
        "between": between(formula, loaded),
        "second": emit.second(formula, types, loaded),
    }


@cache
def kernels(
    variant: Variant, scalars: tuple[str, ...], types: Types, loaded: frozenset[str]
) -> Mapping[str, Kernel]:
    """The kernels of a variant, by what each is for; raises ``Refused`` if its functions cannot be read."""
    made = texts(formula_of(variant, scalars), types, loaded)
    return {role: Kernel.of(text, f"{variant.name} {role}") for role, text in made.items()}


@cache
def collect() -> Kernel:
    """The kernel that adds up the pieces of long rows."""
    from ingot.backends.triton_kernels import words

    return Kernel(words.collect, "collect")


class Kernel:
    """A kernel, and for which devices it was compiled."""

    def __init__(self, function: Any, name: str) -> None:
        self.function, self.name = function, name
        self.compiled: set[tuple[torch.device, Any]] = set()
        self.broken: str | None = None

    @classmethod
    def of(cls, text: str, name: str) -> Kernel:
        """A function made from its text, which Triton reads again through ``linecache``."""
        import triton
        import triton.language as tl

        from ingot.backends.triton_kernels import words, words8

        file = f"<ingot {name} {hash(text) & 0xFFFFFFFF:08x}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        scope: dict[str, Any] = {**vars(words), **vars(words8), "tl": tl, "__name__": __name__}
        exec(compile(text, file, "exec"), scope)
        function = scope[text.removeprefix("def ").partition("(")[0]]
        # Triton would compile anew for arguments that are 1 or divisible by 16.
        plain = [n for n in signature(function).parameters if n not in function.__annotations__]
        return cls(triton.jit(do_not_specialize=plain)(function), name)

    def problem(
        self, device: torch.device, arguments: Sequence[Any], constants: Mapping[str, int]
    ) -> str | None:
        """Compile it for the arguments of a step; why that fails. Said in a warning, once.

        Raises if memory is short: another time there may be enough.
        """
        key = device, tuple(constants.items())
        if self.broken is None and key not in self.compiled:
            try:
                if not INTERPRETED:
                    ready = {"grid": (1,), **constants, **options_here()}
                    self.function.warmup(*arguments, **ready)._init_handles()  # loads it, too
            except Exception as error:
                if is_short_of_memory(error):
                    raise
                self.broken = f"Triton cannot compile the kernel {self.name} ({first_line(error)})"
                warnings.warn(f"ingot: {self.broken}; another backend is used", stacklevel=2)
            else:
                self.compiled.add(key)
        return self.broken

    def launch(self, programs: int, arguments: Sequence[Any], constants: Mapping[str, int]) -> None:
        """Start it; nothing to do for no programs."""
        if programs:
            self.function[(programs,)](*arguments, **constants, **options_here())


def is_short_of_memory(error: Exception) -> bool:
    """Whether an error says that there was no memory. Triton passes on what the driver says, as a RuntimeError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error)


def first_line(error: Exception) -> str:
    """An error in short."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
