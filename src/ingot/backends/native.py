"""The native backend: C++ over all tensors of a bucket in one call, on the CPU."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from ingot.backends.backend import Backend
from ingot.storage.blockwise8 import Blockwise8
from ingot.storage.floats import FloatFormat

if TYPE_CHECKING:
    from ingot.declare.spec import Spec, Variant
    from ingot.reductions.rows import PerRow
    from ingot.step.bucket import Bucket

_import_error: str | None = None
try:
    import ingot._native as core
except ImportError as error:
    # Asked for by name and not to be had: an error, as with backend="native".
    if "INGOT_ISA" in str(error):
        raise
    _import_error = str(error)
    core = None  # type: ignore[assignment]

# The formats the core knows, and whether it reads a state of that format as codes and scales.
_CODED: dict[type[Any], bool] = {FloatFormat: False, Blockwise8: True}
_LIBRARY = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}


@cache
def _unavailable() -> str | None:
    """Connect the core with torch, once; the reason if that fails."""
    if _import_error is not None and find_spec("ingot._native") is None:
        return "ingot was installed without the C++ core"
    if _import_error is not None:
        return f"the compiled core does not load ({_import_error})"
    exchange_api = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if exchange_api is None:
        return f"torch {torch.__version__} has no DLPack exchange table; 2.10 or newer is needed"
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY[sys.platform]))
        address = ctypes.cast(library.torch_parallel_for, ctypes.c_void_p).value
    except (KeyError, OSError, AttributeError) as error:
        return f"torch {torch.__version__} gives no access to its threads ({error!r})"
    # A table of another layout than expected would show here, before it can do harm.
    try:
        core.setup(exchange_api, address or 0, Tensor, Parameter)
        with _disable_current_modes():  # the first step may be made among fake tensors
            known = torch.tensor([3.0, -4.0], dtype=torch.float32, device="cpu")
            understood = core.squares([known]) == 25.0
    except (RuntimeError, ValueError) as error:
        return f"the compiled core does not fit torch {torch.__version__} ({error})"
    if not understood:
        return f"the compiled core does not read the tensors of torch {torch.__version__}"
    return None


@cache
def _number(variant: Variant) -> int | None:
    """The number of a variant in the core; None if it was not compiled in."""
    if _unavailable() or not _is_compiled(variant.spec):
        return None
    number, _ = core.variants().get(variant.name, (None, ""))
    return number


def _is_compiled(spec: Spec) -> bool:
    """Whether a spec is what ``optim/<name>.py`` declares, in everything that was compiled.

    A spec from elsewhere may carry a known name and some of the functions.
    """
    module = sys.modules.get(f"ingot.optim.{spec.name}")
    functions = ("scalars", "advance", "direction", "finish", "score")
    if module is None or any(getattr(spec, f) is not getattr(module, f, None) for f in functions):
        return False
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    declared = [vars(kind)["spec"] for kind in kinds if "spec" in vars(kind)]
    return _data(spec) in map(_data, declared)


def _data(spec: Spec) -> tuple[Any, ...]:
    """What was compiled beside the functions; the order of the states is part of it."""
    return [*spec.states.items()], spec.sums, spec.rows, spec.looks_back


class Native(Backend):
    """Runs on CPU tensors of floating-point types, whatever their layout."""

    name = "native"
    devices = ("cpu",)
    hint = (
        "Reinstall ingot where a C++17 compiler is found; INGOT_REQUIRE_NATIVE=1 shows its errors."
    )

    def unavailable(self) -> str | None:
        """Why the core cannot be used: not built, or no match for this torch."""
        return _unavailable()

    def prepare(self, bucket: Bucket) -> str | None:
        """Read all tensors as they are now into ``bucket.prepared``; or say why they cannot be taken."""
        number = _number(bucket.variant)
        if number is None:
            return f"{bucket.variant.name} was not compiled in"
        for form in bucket.formats:
            if type(form) not in _CODED:
                return f"it does not know states kept as {form.name}"
        coded = {_CODED[type(form)] for form in bucket.formats}
        if len(coded) > 1:
            return "some of the states are kept in blocks and others are not"
        table = core.prepare(
            number,
            bucket.params,
            bucket.grads,
            bucket.states,
            bucket.masters,
            None if bucket.rounding is None else bucket.rounding.keys,
            bucket.inner_dims,
            True in coded,
        )
        if isinstance(table, str):
            return table
        bucket.prepared = table
        return None

    def run(self, bucket: Bucket) -> None:
        """Update all tensors; two-pass optimizers do both passes and ``finish`` inside the call."""
        core.run(bucket.prepared, bucket.scalars, float(bucket.grad_scale))
        _written(bucket)

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row, [spec.sums, rows]."""
        shape = len(bucket.variant.spec.sums), core.rows(bucket.prepared)
        sums = torch.zeros(shape, dtype=torch.float64, device="cpu")
        core.first(bucket.prepared, bucket.scalars, float(bucket.grad_scale), sums)
        return sums

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Apply one (keep, rate) per row, or one for all rows."""
        rows = core.rows(bucket.prepared)
        keeps, rates = (
            torch.as_tensor(factor, dtype=torch.float64, device="cpu").expand(rows).contiguous()
            for factor in (keep, rate)
        )
        core.second(bucket.prepared, bucket.scalars, float(bucket.grad_scale), keeps, rates)
        _written(bucket)

    def grad_norms(self, bucket: Bucket) -> float:
        """The sum of the squares of the gradients, in double precision; after ``prepare``."""
        if bucket.grads[0].dtype is torch.float64 and bucket.params[0].dtype is not torch.float64:
            return core.squares(bucket.grads)  # the table would read them as float32
        return core.grad_squares(bucket.prepared)

    def squares(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum of squares in double precision."""
        try:
            return on_cpu(core.squares(list(tensors)))
        except ValueError:  # it cannot read one of them
            return super().squares(tensors)

    def largest(self, tensors: Sequence[Tensor]) -> Tensor:
        """The largest magnitude, NaN if there is one."""
        try:
            return on_cpu(core.largest(list(tensors)))
        except ValueError:
            return super().largest(tensors)

    def scale_(self, tensors: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply all tensors in place; one that is there twice is multiplied twice, as in torch."""
        found = self.facts([list(tensors)], [])
        if found is None or found[1]:  # two threads would multiply the same memory at once
            return super().scale_(tensors, factor)
        try:
            core.scale(list(tensors), float(factor))
        except ValueError:
            return super().scale_(tensors, factor)
        increment_version(tensors)

    def facts(self, written: list[list[Tensor]], read: list[Tensor]) -> tuple[bytes, bool] | None:
        """Type, device, shape and strides of all tensors, and whether a written one shares memory with another.

        None if the core cannot read one of them. Unlike everything else here it takes tensors of any device.
        """
        return core.facts(written, read)

    def addresses(self, lists: list[list[Tensor]]) -> tuple[bytes, bytes, bool] | None:
        """Where tensors of any device are, for kernels that find them by a table; see csrc/python/facts.h."""
        return core.addresses(lists)


def on_cpu(value: float) -> Tensor:
    """A number of the core as a 0-dim tensor."""
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def floor(reads: Sequence[Sequence[Tensor]], writes: Sequence[Sequence[Tensor]]) -> None:
    """The memory traffic of a step without its math, for benchmarks.

    Every tensor in ``reads`` is read, every tensor in ``writes`` is read and written back unchanged, with the
    threads and the prefetching of a step. A list in both counts as written.
    """
    written = {id(tensors[0]) for tensors in writes if tensors}
    only_read = [list(tensors) for tensors in reads if tensors and id(tensors[0]) not in written]
    core.floor(only_read, [list(tensors) for tensors in writes], 0)


def _written(bucket: Bucket) -> None:
    """Tell autograd what was changed. The states are nobody's but the optimizer's: no graph holds them."""
    increment_version(bucket.params)


NATIVE = Native()
