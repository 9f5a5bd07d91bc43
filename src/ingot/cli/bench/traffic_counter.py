"""Counts what torch operators move: the bytes they read and write, their number, and how often the host waits.

A model of bandwidth, not a measurement of time: every operator is charged with all bytes of the tensors it reads and of
those it writes. Views are free; a tensor that stands twice in one operator is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITE_ONLY = {"copy_", "_foreach_copy_", "zero_", "fill_", "_foreach_zero_"}
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select"}
FREE = {"detach", "_unsafe_view", "lift_fresh", "alias"}


class Traffic(TorchDispatchMode):
    """What passes the dispatcher while it is active.

    Attributes:
        read, written: bytes.
        operators: calls that are neither views nor allocations, each at least one launch on a device.
        waits: operators whose result the host waits for.
        calls, moved: operators and bytes by name.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = self.written = self.operators = self.waits = 0
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if func.is_view or name in FREE or "empty" in name or func.namespace == "profiler":
            return out
        reads, writes = self._operands(func, args, kwargs, out)
        self.read += sum(reads.values())
        self.written += sum(writes.values())
        self.operators += 1
        self.waits += name in WAITS
        self.calls[name] += 1
        self.moved[name] += sum(reads.values()) + sum(writes.values())
        return out

    def _operands(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, Any]:
        """``(reads, writes)``: the sizes of tensors by address."""
        name = func._schema.name.removeprefix("aten::")
        read: list[Tensor] = []
        written: list[Tensor] = []
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            tensors = tensors_in(value)
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += tensors
                if name in WRITE_ONLY or argument.kwarg_only:  # out=
                    continue
            read += [] if name.endswith("_like") else tensors
        return sizes(read), sizes(written or tensors_in(out))


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors in nested lists."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def sizes(tensors: Iterable[Tensor]) -> dict[tuple[int, int], int]:
    """Bytes by address and size; an expanded dimension is moved once."""
    result = {}
    for tensor in tensors:
        size = tensor.element_size()
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
            size *= 1 if stride == 0 and length > 1 else length
        result[tensor.data_ptr(), size] = size
    return result


def measure(step: Callable[[], Any], warm: int = 3) -> Traffic:
    """The traffic of one steady step."""
    for _ in range(warm):
        step()
    traffic = Traffic()
    with traffic:
        step()
    return traffic


def kept(optimizer: Any) -> int:
    """Bytes of tensors that backends of an optimizer of ours keep between steps."""
    seen: dict[int, int] = {}
    waiting: list[Any] = [optimizer._planner.scratch]
    known: set[int] = set()
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            seen[storage._cdata] = storage.nbytes()
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
        elif type(each).__module__.startswith("ingot."):
            waiting += vars(each).values() if hasattr(each, "__dict__") else []
    return sum(seen.values())
