"""The process group backend `hccl`, on gloo: DDP, FSDP2 and collectives between simulated NPUs.

Gloo refuses tensors of foreign devices. It is given the host's views of their memory instead, so that
nothing is copied and results are where they belong.
"""

import atexit
import functools
import inspect
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from ingot.npusim.bridge import DEVICE_TYPE, is_npu, to_host
from ingot.npusim.placement import tensors_in

BACKEND = "hccl"

# What of dist.ProcessGroup is handed to gloo; which names there are depends on the version of torch.
_COLLECTIVES = (
    "allgather",
    "all_gather_single",
    "_allgather_base",
    "allgather_coalesced",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "all_to_all_single",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
_POINT_TO_POINT = ("send", "recv", "recv_anysource")
# Every group of gloo lives until the process ends. A finished operation may hold the last reference, in a thread of
# gloo's own; the group would then wait there for that same thread: "Resource deadlock avoided", or for ever.
_GROUPS: list[Any] = []
# What gloo's threads still hold of Python: the callback of a collective and the tensors it was given.
_IN_FLIGHT: list[tuple[Any, ...]] = []
# Seconds to wait at the end of the process for collectives that nobody waited for.
_PATIENCE = 5.0


class SimulatedHccl(dist.ProcessGroup):
    """A process group whose tensors are on the simulated NPU and whose collectives are gloo's."""

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        gloo = dist.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, timeout=options.timeout
        )
        _GROUPS.append(gloo)
        host = torch.device("cpu")
        self._inner = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        self._inner._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._inner._register_backend(host, dist.ProcessGroup.BackendType.GLOO, gloo)
        # torch 2.15 asks the group in C++ for its name and default backend: both need one registered.
        custom = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(custom)
        self._register_backend(torch.device(DEVICE_TYPE), custom, gloo)
        self._name: str = options.group_id

    @property
    def group_name(self) -> Any:
        """The name the group is registered by."""
        return self._name

    @property
    def pg_name(self) -> str:
        """The name the group is registered by."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(DEVICE_TYPE), *([torch.device("cpu")] if self._serves_host() else [])]

    def getBackendName(self) -> str:
        """Returns hccl: torch asks by this name."""
        return BACKEND

    def name(self) -> str:
        """Returns hccl."""
        return BACKEND

    def _get_backend_name(self) -> str:
        return BACKEND

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner._get_backend(torch.device("cpu"))

    def _serves_host(self) -> bool:
        """Tells whether the group was asked to serve CPU tensors too: "cpu:gloo,npu:hccl"."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        return "cpu:" in str(config)

    def _down(self, value: Any) -> Any:
        if is_npu(value):
            return to_host(value.detach())
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu" and self._serves_host():
                return value
            raise RuntimeError(
                f"No backend type associated with device type {value.device.type}: the process "
                f"group {BACKEND} (simulated by ingot.npusim) takes tensors on {DEVICE_TYPE}"
            )
        if isinstance(value, (list, tuple)):
            return type(value)(self._down(member) for member in value)
        return value

    def _collective(self, name: str, *args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        average = _take_average(values)
        for value in values:
            if isinstance(value, dist.BarrierOptions):
                value.device = torch.device("cpu")  # of the group underneath
        down = [self._down(value) for value in args]
        down_named = {key: self._down(value) for key, value in kwargs.items()}
        work = getattr(self._inner, name)(*down, **down_named)
        # What the collective writes to: outputs come first.
        written = list(tensors_in(values[0])) if values else []

        def finish(done: torch.futures.Future[Any]) -> list[torch.Tensor]:
            done.value()  # raises what the collective raised
            if average:
                for tensor in written:
                    tensor.detach().div_(self.size())
            return written

        future = _future_of(work).then(finish)
        _IN_FLIGHT[:] = _in_flight()
        _IN_FLIGHT.append((finish, down, down_named))
        return _distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]

    def _point_to_point(self, name: str, *args: Any, **kwargs: Any) -> Any:
        down_named = {key: self._down(value) for key, value in kwargs.items()}
        return getattr(self._inner, name)(*(self._down(value) for value in args), **down_named)


def _in_flight() -> list[tuple[Any, ...]]:
    """The collectives whose callback is still held by gloo: by a reference beside the list's and the call's."""
    return [held for held in _IN_FLIGHT if sys.getrefcount(held[0]) > 2]


def _let_finish() -> None:
    """Waits until gloo's threads need no Python any more.

    A thread of C++ that asks for Python's lock while the interpreter shuts down ends the process with "terminate
    called without an active exception" (torch 2.13, issues 38228 and 190489).
    """
    deadline = time.monotonic() + _PATIENCE
    while _in_flight() and time.monotonic() < deadline:
        time.sleep(0.001)


def _future_of(work: Any) -> "torch.futures.Future[Any]":
    try:
        future: torch.futures.Future[Any] = work.get_future()
    except RuntimeError:  # gloo's reduce_scatter has none, and finishes in wait() (torch 2.13)
        work.wait()
        future = torch.futures.Future()
        future.set_result(None)
    return future


def _take_average(values: list[Any]) -> bool:
    """Turns an average, which gloo does not have, into a sum; returns whether it was one."""
    for options in values:
        if getattr(options, "reduceOp", None) == dist.ReduceOp.AVG:
            options.reduceOp = dist.ReduceOp.SUM
            return True
    return False


def _method(through: str, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(dist.ProcessGroup, name))
    def method(self: SimulatedHccl, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, through)(name, *args, **kwargs)

    return method


for _through, _names in (("_collective", _COLLECTIVES), ("_point_to_point", _POINT_TO_POINT)):
    for _name in _names:
        if hasattr(dist.ProcessGroup, _name):
            setattr(SimulatedHccl, _name, _method(_through, _name))


def _create(options: Any, backend_options: Any) -> SimulatedHccl:
    return SimulatedHccl(options)


def mend_ddp() -> None:
    """Lets DDP run where it is told to look for unused parameters, without looking for them.

    Looking needs pinned memory, which torch asks a C++ backend for (torch 2.13). Without unused
    parameters nothing differs; with some, DDP raises its own error in the next step.
    """
    ddp: Any = torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        looks = bound.arguments.get("find_unused_parameters", False)
        if looks and any(is_npu(param) for param in bound.arguments["module"].parameters()):
            warnings.warn(
                "the simulated NPU (ingot.npusim) cannot look for unused parameters: DDP goes on as "
                "with find_unused_parameters=False, and raises if a parameter gets no gradient",
                stacklevel=2,
            )
            bound.arguments["find_unused_parameters"] = False
        original(*bound.args, **bound.kwargs)

    ddp.__init__ = init


def is_hccl_available() -> bool:
    """Returns True."""
    return True


def register_backend() -> None:
    """Makes `hccl` known to torch.distributed, as the backend for npu tensors."""
    atexit.register(_let_finish)
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[DEVICE_TYPE])
    dist.is_hccl_available = is_hccl_available  # type: ignore[attr-defined]
