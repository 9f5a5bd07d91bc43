"""States in host memory: the host's copies of parameters on an accelerator and of their gradients.

An offloaded parameter stays on its device, and so does its gradient. The step is made on the host: gradient and
parameter travel there, the states and the master copy live there, and the new parameter travels back.

A gradient is copied as soon as backward has accumulated it. Whoever changes it after that (a second backward, clipping,
an all-reduce, the user) is noticed at the step, and it is copied again: it must be the same tensor, with the same
version, and the same sums of its values and of its bits, because edits through ``.data`` and collectives do not count
versions. The parameter is copied in every step, so that the step starts from what it is then.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ingot.declare.options import Rule
from ingot.sharding.dtensor import is_dtensor
from ingot.storage.transfer import STREAMS, Ticket, Transfer

OFFLOAD = Rule("offload", lambda x: x is None or x == "cpu", "None or 'cpu'")
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by element size


class Sent(NamedTuple):
    """A gradient that was copied to the host, as it was then."""

    grad: weakref.ref[Tensor]
    version: int
    sums: tuple[Tensor, ...]  # on the device; none for one that the step itself has copied
    ticket: Ticket
    number: int  # in the order of all copies

    def is_current(self, grad: Tensor) -> bool:
        """Whether the gradient is still what was copied."""
        if not self.sums or self.grad() is not grad or self.version != grad._version:
            return False
        return all(bool(old == new) for old, new in zip(self.sums, sums_of(grad), strict=True))


@dataclass(eq=False)
class Mirror:
    """The host's copies of one parameter and of its gradient; none before they are first needed."""

    param: Tensor
    grad: Tensor
    sent: Sent | None = None
    fetched: Ticket = None  # the parameter's copy


NONE = torch.empty(0, dtype=torch.bool, device="cpu")  # like no parameter or gradient


class Offload:
    """Brings parameters and gradients of one optimizer to the host and back.

    Parameters are known by their identity. They are not kept alive, and have no weak references, with which
    torch.utils.swap_tensors would refuse them.

    Args:
        transfer: how copies are made.
    """

    def __init__(self, transfer: Transfer = STREAMS) -> None:
        self.transfer = transfer
        self.mirrors: dict[int, Mirror] = {}
        self.hooks: dict[int, RemovableHandle] = {}
        # Identities of parameters, and whether they get gradients, as they were when hooks were last seen to.
        self.attached: list[tuple[int, bool]] = []
        # Memory of a gradient that its user drops must not serve other tensors while it is still being read.
        self.flying: deque[tuple[Ticket, Tensor]] = deque()
        self.lock = threading.Lock()  # backward runs one thread per device
        self.numbers = count()
        weakref.finalize(self, remove_all, self.hooks).atexit = False

    def attach(self, params: Sequence[Tensor]) -> None:
        """Have the gradients of these parameters, and of no others, copied during backward."""
        ids = [(id(param), param.requires_grad) for param in params]
        if ids == self.attached:
            return
        self.attached = ids
        known = {id(param) for param in params}
        for gone in self.hooks.keys() - known:
            self.hooks.pop(gone).remove()
        for gone in self.mirrors.keys() - known:
            del self.mirrors[gone]
        for param in params:
            hook = self.hooks.get(id(param))
            attached = hook is not None and hook.id in (param._post_accumulate_grad_hooks or ())
            if not attached and param.is_leaf and param.requires_grad:
                self.hooks[id(param)] = param.register_post_accumulate_grad_hook(calling(self))

    def begin(self, param: Tensor) -> None:
        """Start the journey of a gradient that was just accumulated; a step that finds none under way starts it."""
        grad = param.grad
        if grad is None or not is_away(param) or not is_ordinary(grad):
            return
        # Without memory, or an operator, this is no reason to fail in backward: the step tries again, and says so.
        with contextlib.suppress(RuntimeError), torch.no_grad():
            self._send(self._mirror(param), grad, grad._version, sums_of(grad))

    def brought(self, param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Host tensors in which this parameter and its gradient are, or will have arrived after :meth:`wait`."""
        if not is_away(param):
            return param, grad
        mirror = self._mirror(param)
        sent = mirror.sent if is_like(mirror.grad, grad) else None
        if sent is None or not sent.is_current(grad):
            self._send(mirror, grad)
        if not is_like(mirror.param, param):
            mirror.param = self.transfer.buffer(param.detach())
        if mirror.param.stride() != param.stride():
            # The way back needs a dense copy on the device. Whether there is room must show now.
            torch.empty_like(mirror.param, device=param.device)
        mirror.fetched = self.transfer.fetch(param.detach(), mirror.param)
        return mirror.param, mirror.grad

    def place(self, param: Tensor) -> int:
        """The place of a gradient in the order in which they were sent; -1 for one that is on the host anyway."""
        mirror = self.mirrors.get(id(param))
        return -1 if mirror is None or mirror.sent is None else mirror.sent.number

    def wait(self, params: Sequence[Tensor]) -> None:
        """Return when parameters and gradients have arrived."""
        self.wait_for_gradients(params)
        for param in filter(is_away, params):
            self.transfer.wait(self.mirrors[id(param)].fetched)

    def wait_for_gradients(self, params: Sequence[Tensor]) -> None:
        """Return when gradients have arrived."""
        for param in filter(is_away, params):
            sent = self.mirrors[id(param)].sent
            assert sent is not None
            self.transfer.wait(sent.ticket)
        self._land()

    def send_back(self, params: Sequence[Tensor]) -> None:
        """Start to write updated parameters to their device."""
        for param in filter(is_away, params):
            self.transfer.send(self.mirrors[id(param)].param, param)

    def settle(self, params: Sequence[Tensor]) -> None:
        """Let whatever the devices do next find the updated parameters."""
        for device in {param.device for param in params if is_away(param)}:
            self.transfer.settle(device)

    def _mirror(self, param: Tensor) -> Mirror:
        return self.mirrors.setdefault(id(param), Mirror(NONE, NONE))

    def _send(
        self, mirror: Mirror, grad: Tensor, version: int = -1, sums: tuple[Tensor, ...] = ()
    ) -> None:
        """Start to copy a gradient, and note what it is like."""
        mirror.sent = None
        source = grad.detach()
        if not is_like(mirror.grad, source):
            mirror.grad = self.transfer.buffer(source)
        ticket = self.transfer.fetch(source, mirror.grad)
        self._land()
        if not self.transfer.is_done(ticket):
            self.flying.append((ticket, source))
        mirror.sent = Sent(weakref.ref(grad), version, sums, ticket, next(self.numbers))

    def _land(self) -> None:
        """Let go of gradients that have arrived."""
        with self.lock:
            while self.flying and self.transfer.is_done(self.flying[0][0]):
                self.flying.popleft()


def is_away(param: Tensor) -> bool:
    """Whether a parameter is on another device than the host; one that only has a shape is nowhere."""
    return param.device.type not in ("cpu", "meta")


def is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor is a block of real numbers, which can be copied without being interpreted."""
    plain = type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided
    known = tensor.is_floating_point() and tensor.element_size() in _INTEGERS
    return plain and known and not tensor.is_neg()


def is_like(buffer: Tensor, tensor: Tensor) -> bool:
    """Whether a buffer was made for a tensor of this type and layout."""
    if buffer.dtype is not tensor.dtype or buffer.shape != tensor.shape:
        return False
    return buffer.stride() == torch.empty_like(tensor, device="meta").stride()


def sums_of(grad: Tensor) -> tuple[Tensor, ...]:
    """A fingerprint of a gradient: the sum of its bits as integers, and that of its values.

    A change of one element always shows in the first, which is exact modulo 2^64. Those of many could cancel there, as
    turning all signs does if half of them are negative; that shows in the second. NaN is never the same.
    """
    values = grad.detach()
    return values.view(_INTEGERS[values.element_size()]).sum(), values.sum()


def calling(offload: Offload) -> Callable[[Tensor], None]:
    """A hook for parameters. It does not keep the optimizer's part alive."""
    reference = weakref.ref(offload)

    def begin(param: Tensor) -> None:
        found = reference()
        if found is not None:
            found.begin(param)

    return begin


def remove_all(hooks: dict[int, RemovableHandle]) -> None:
    """Take hooks away from the parameters that are still there."""
    for hook in hooks.values():
        hook.remove()


def problem(param: Tensor) -> str | None:
    """Why the states of a parameter cannot be kept on the host; None if they can."""
    if not is_away(param):
        return None
    if is_dtensor(param):
        return (
            "a DTensor on an accelerator, which offload='cpu' does not take; a model sharded by FSDP2 keeps its states "
            "on the host with fully_shard(..., offload_policy=CPUOffloadPolicy()), and offload left out"
        )
    if type(param) not in (Tensor, Parameter):
        return f"a {type(param).__name__}; offload='cpu' takes ordinary tensors and DTensors on the CPU only"
    return None
