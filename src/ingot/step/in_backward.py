"""The step inside backward: a parameter is updated as soon as its gradient is complete, and the gradient is freed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from ingot.step import release_refusals as refusals
from ingot.step.parcels import Parcel, parcels_of
from ingot.step.planned import Planned
from ingot.step.roster import all_params
from ingot.step.whole import make_step


class ReleasedGradients:
    """What ``release_gradients()`` returns: while it is in force, parameters are updated inside backward.

    A parameter is updated by the same code as in ``step()``, from its own gradient, with the options its group has
    at that moment. Small parameters are updated a few at a time, those left over when backward ends. ``step()`` ends
    the iteration and updates what still has a gradient, as a rule nothing.

    It holds no parameter and not the optimizer; the optimizer holds it. Of a failed backward ``updated`` and
    ``waiting`` say how far it came.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedAdamW
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = NpuFusedAdamW(model.parameters(), lr=1e-2)
        >>> with optimizer.release_gradients():
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(2, 3)).square().sum().backward()
        ...         optimizer.step()
        >>> model.weight.grad is None
        True
    """

    def __init__(self, optimizer: Planned) -> None:
        if optimizer._released is not None:
            raise RuntimeError(
                f"{type(optimizer).__name__}: gradients are released already; remove() that handle first"
            )
        self._optimizer = weakref.ref(optimizer)
        self._lock = threading.RLock()  # backward runs one thread per device
        self._hooks: dict[int, Any] = {}  # by the identity of the parameter
        self._parcels: dict[int, Parcel] = {}  # by ordinal
        self._places: dict[int, tuple[int, int, int]] = {}  # id: ordinal, group, position
        self._updated: set[int] = set()  # ordinals, since the last step()
        self._unfinished: set[int] = set()  # backward passes that have begun and not ended
        self._looked_around = False
        refusals.refuse_leftovers(optimizer)
        refusals.refuse_bystanders(optimizer)
        self.watch()
        optimizer._released, optimizer._quick = self, None

    def remove(self) -> None:
        """Let ``step()`` update all parameters again. Gradients that still wait are left where they are."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._places.clear()
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._released is self:
            optimizer._released = None

    def __enter__(self) -> ReleasedGradients:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @property
    def updated(self) -> list[str]:
        """The parameters that were updated since the last ``step()``."""
        return self._names(sorted(self._updated))

    @property
    def waiting(self) -> list[str]:
        """The parameters that have a gradient and were not updated yet; none once backward has ended."""
        return self._names(i for i, parcel in sorted(self._parcels.items()) if i in parcel.arrived)

    def discard(self) -> None:
        """Give up an iteration whose backward failed: drop all gradients, and expect the next backward.

        Parameters that were updated stay so.
        """
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._released is self:
            self.begin_iteration()

    # What follows is called by the optimizer and by autograd.

    def watch(self) -> None:
        """Hook every parameter that requires a gradient; raises, changing nothing, if the optimizer cannot do this."""
        optimizer = self._optimizer()
        assert optimizer is not None
        refusals.refuse_options(optimizer)
        params = all_params(optimizer.param_groups)
        places = places_of(optimizer)
        if places == self._places:
            return
        new = [params[place[0]] for each, place in places.items() if each not in self._hooks]
        refusals.refuse_rivals(type(optimizer).__name__, new, on_gradient)
        for gone in self._hooks.keys() - places.keys():
            self._hooks.pop(gone).remove()
        arrive = partial(on_gradient, weakref.ref(self))
        for param in new:
            self._hooks[id(param)] = param.register_post_accumulate_grad_hook(arrive)
        self._places = places
        self._parcels = parcels_of(params, [ordinal for ordinal, _, _ in places.values()])
        self._looked_around = False

    def refuse_clipping(self, what: str) -> None:
        """Raise for a method that clips gradients."""
        raise RuntimeError(refusals.clipping_message(self._owner, what))

    def refuse_unfinished(self) -> None:
        """Raise, at the beginning of ``step()``, if the iteration cannot be ended by it."""
        optimizer = self._optimizer()
        if optimizer is not None and "found_inf" in vars(optimizer):
            raise RuntimeError(f"{type(optimizer).__name__}: {refusals.SCALER}")
        if self._unfinished:
            raise RuntimeError(f"{self._owner}: {self._failure()}")

    def begin_iteration(self) -> None:
        """All is updated: the next gradient of each parameter belongs to the next step."""
        optimizer = self._optimizer()
        assert optimizer is not None
        for parcel in self._parcels.values():
            parcel.clear()
        self._updated.clear()
        self._unfinished.clear()
        for param in all_params(optimizer.param_groups):
            param.grad = None
        self.watch()

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def arrive(self, param: Tensor) -> None:
        """The gradient of a parameter is complete: update it, or let it wait for others."""
        with self._lock:
            optimizer = self._optimizer()
            place = self._places.get(id(param))
            if optimizer is None or place is None or not stands_at(optimizer, param, *place):
                return  # nobody's, no longer this optimizer's, or under another ordinal: left to step()
            if param.grad is None:
                return  # somebody else's hook has taken it
            ordinal = place[0]
            parcel = self._parcels[ordinal]
            self._note_backward(optimizer)
            self._refuse_gradient(ordinal, parcel)
            parcel.add(ordinal, param.device)
            if len(parcel.arrived) == len(parcel.ordinals):
                self._update(optimizer, parcel)

    def _refuse_gradient(self, ordinal: int, parcel: Parcel) -> None:
        """Raise if a gradient cannot be used."""
        second = ordinal in self._updated or ordinal in parcel.arrived
        if not second and not torch.is_grad_enabled():
            return
        reason = refusals.SECOND if second else refusals.CREATE_GRAPH
        if self._unfinished - {torch._C._current_graph_task_id()}:
            reason = f"{reason}. {self._failure()}"
        raise RuntimeError(f"{self._owner}: {self._names([ordinal])[0]}: {reason}")

    def _note_backward(self, optimizer: Planned) -> None:
        """Once per backward pass, before its first update: ask autograd to be called at its end."""
        task = torch._C._current_graph_task_id()
        if task in self._unfinished:
            return
        if task >= 0:  # not if somebody else calls the hooks: what is left waits for step() then
            Variable._execution_engine.queue_callback(partial(self._end_backward, task))
            self._unfinished.add(task)
        if not self._looked_around:
            refusals.refuse_bystanders(optimizer)
            self._looked_around = True

    def _end_backward(self, task: int) -> None:
        """Update what still waits; autograd calls this after the last gradient, unless backward failed."""
        with self._lock:
            optimizer = self._optimizer()
            for parcel in {id(each): each for each in self._parcels.values()}.values():
                if parcel.arrived and optimizer is not None:
                    self._update(optimizer, parcel)
            self._unfinished.discard(task)

    def _update(self, optimizer: Planned, parcel: Parcel) -> None:
        """Update the parameters of a parcel that have their gradients, and free these."""
        parcel.wait()
        ordinals = sorted(parcel.arrived)
        quick = parcel.quick if parcel.quick_for == ordinals else None
        if quick is None or quick.step(quick.plan, vars(optimizer)) is False:
            refusals.refuse_options(optimizer)
            # In this order: the first switches gradients on.
            with torch.inference_mode(False), torch.no_grad():
                parcel.quick = make_step(optimizer, optimizer._everything(), ordinals)
            parcel.quick_for = ordinals
        parcel.clear()
        self._updated.update(ordinals)
        params = all_params(optimizer.param_groups)
        for ordinal in ordinals:
            params[ordinal].grad = None

    @property
    def _owner(self) -> str:
        return type(self._optimizer()).__name__

    def _failure(self) -> str:
        """How far a backward came that did not end."""
        return refusals.unfinished(self.updated, self.waiting, len(self._places))

    def _names(self, ordinals: Iterable[int]) -> list[str]:
        """What parameters are called in messages."""
        optimizer = self._optimizer()
        if optimizer is None:
            return []
        roster, _ = optimizer._planner.refresh(optimizer.param_groups)
        return [roster.place(i, optimizer.param_groups).in_optimizer for i in ordinals]


def on_gradient(handle: weakref.ref[ReleasedGradients], param: Tensor) -> None:
    """The hook of every parameter. It does not keep the optimizer alive, which holds the parameter."""
    alive = handle()
    if alive is not None:
        alive.arrive(param)


def places_of(optimizer: Planned) -> dict[int, tuple[int, int, int]]:
    """Ordinal, group and position of every parameter that requires a gradient, by its identity."""
    groups = enumerate(optimizer.param_groups)
    every = ((g, p, param) for g, group in groups for p, param in enumerate(group["params"]))
    return {id(param): (i, g, p) for i, (g, p, param) in enumerate(every) if param.requires_grad}


def stands_at(optimizer: Planned, param: Tensor, ordinal: int, group: int, position: int) -> bool:
    """Whether a parameter stands where it stood when it was hooked, with as many parameters before it."""
    *earlier, own = [each["params"] for each in optimizer.param_groups[: group + 1]] or [[]]
    before = sum(map(len, earlier))
    return before + position == ordinal and position < len(own) and own[position] is param
