"""What an optimizer declares; everything else in the library is shared by all of them.

The math of one element is two pure functions and one fixed line, the same for every optimizer:

    states = advance(param, grad, *states, s)
    update = direction(param, grad, *states, s)       # from the states as they are now stored
    param  = keep * param - rate * update

An update that needs the states as they were before the step (Adadelta) says so with ``looks_back``.

An elementwise optimizer has ``keep`` and ``rate`` among its scalars. A two-pass optimizer (LAMB, AdamP)
computes them per row from sums over the tensor, with ``finish``. Because ``direction`` can be evaluated again
from what is stored, no backend ever has to keep a whole update between the two passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

Group = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """One state of an optimizer: a tensor of the parameter's shape.

    Attributes:
        flag: the option that switches it on (None: it is always there).
        start: the value of every element before the first step.
        signed: whether an element can be negative; averages of squares cannot.
    """

    flag: str | None = None
    start: float = 0.0
    signed: bool = True


class Sums(SimpleNamespace):
    """Sums of products over one row, or over one tensor, under the names of ``ingot.declare.sums``.

    Only the sums a spec asks for are there, and ``root_n``, the root of the number of elements added. A row is
    one index of dim 0. Tensors with fewer than two dimensions have no rows to project: there ``root_n`` is
    infinite.
    """


def learning_rate(group: Group) -> Any:
    """``group["lr"]`` as scalars are computed from it: a float, or a 0-dim tensor if that is on an accelerator.

    Asking for its value would make the host wait for the device. What is computed from it stays there, too.
    """
    lr = group["lr"]
    if type(lr) is float:
        return lr  # nearly always; isinstance takes 0.3 us for a class like Tensor
    on_device = isinstance(lr, Tensor) and lr.device.type != "cpu"
    return lr.reshape(()) if on_device else float(lr)


class Clip(NamedTuple):
    """Scale gradients down so that their 2-norm is at most ``max_norm``."""

    max_norm: float
    scope: str = "all"  # "all" gradients of the optimizer, or those of one "group" and dtype
    slack: float = 1e-6  # added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does
    option: str = "max_grad_norm"  # by which it was asked for; messages name it


def max_grad_norm_clip(group: Group) -> tuple[Clip, ...]:
    """The common option ``max_grad_norm``: clip by the norm of all gradients."""
    max_norm = group["max_grad_norm"]
    return () if max_norm is None else (Clip(max_norm),)


@dataclass(frozen=True, eq=False)
class Spec:
    """The declaration of one optimizer. Functions take their operands by name; see docs/adding_an_optimizer.md.

    Attributes:
        name: the stem used everywhere: files, kernels, tests.
        states: the states by name; the names are torch.optim's, because they are in checkpoints.
        scalars: ``(group, step) -> NamedTuple`` of floats, computed once per step in double precision; see
            ``learning_rate`` for a rate that is on an accelerator.
        advance: the new states, a tuple.
        direction: the update, from the new states, or from the old ones (``looks_back``).
        finish: two-pass optimizers only: ``(row, total, row_scores, total_score, s) -> (keep, rate)`` per row.
        score: two-pass, optional: ``(sums, s) -> number``; evaluated per row and added up over the rows of a
            tensor (``row_scores``), and evaluated on the whole tensor (``total_score``).
        watched: two-pass, optional: numbers per row that users may watch, by name, from what ``finish`` gets; the
            metrics of a step have their mean over the rows of each tensor.
        sums: which fields of ``Sums`` ``finish`` and ``score`` read.
        rows: whether ``finish`` looks at rows at all; if not, only the totals are computed.
        counted: whether a step counter is kept; if not, ``step`` is 1 the first time and 2 later.
        looks_back: whether ``direction`` reads the states as they were before the step. For elementwise
            optimizers only: the second pass of the others finds the new states alone.
        clips: the clippings a group asks for, applied one after the other.
    """

    name: str
    states: Mapping[str, State]
    scalars: Callable[[Group, int], Any]
    advance: Callable[..., tuple[Any, ...]]
    direction: Callable[..., Any]
    finish: Callable[..., tuple[Any, Any]] | None = None
    score: Callable[..., Any] | None = None
    watched: Callable[..., dict[str, Any]] | None = None
    sums: tuple[str, ...] = ()
    rows: bool = False
    counted: bool = True
    looks_back: bool = False
    clips: Callable[[Group], tuple[Clip, ...]] = max_grad_norm_clip
    _variants: dict[tuple[bool, ...], Variant] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.looks_back and self.finish is not None:
            raise ValueError(f"{self.name}: looks_back and finish exclude each other")

    @cached_property
    def flags(self) -> tuple[str, ...]:
        """The options that change the formula: the keyword-only arguments of the declared functions."""
        functions = [f for f in (self.advance, self.direction, self.finish) if f is not None]
        names = {name for f in functions for name in keyword_only(f)}
        return tuple(sorted(names))

    def numbers(self, group: Group, step: int, device: torch.device, dtype: torch.dtype) -> Any:
        """The scalars of a step as plain floats, also where an option is a tensor.

        Those made of a tensor on an accelerator are tensors there, in the type of the math, for a bucket on one.
        """
        scalars = self.scalars(group, step)
        if device.type == "cpu":
            return scalars._make(map(float, scalars))
        return scalars._make(
            x.to(device, dtype, non_blocking=True) if isinstance(x, Tensor) else float(x)
            for x in scalars
        )

    def variant(self, group: Group) -> Variant:
        """The formula this group asks for; one object per combination of flags."""
        values = tuple(bool(group.get(name, False)) for name in self.flags)
        if values not in self._variants:
            self._variants[values] = Variant(self, dict(zip(self.flags, values, strict=True)))
        return self._variants[values]


class Variant:
    """A spec with its flags decided: what a backend runs."""

    def __init__(self, spec: Spec, flags: Mapping[str, bool]) -> None:
        self.spec = spec
        self.flags = dict(flags)
        self.name = "_".join([spec.name, *(flag for flag, on in flags.items() if on)])
        self.states = tuple(
            name
            for name, state in spec.states.items()
            if state.flag is None or flags.get(state.flag, False)
        )
        self._advanced = operands(spec.advance)[2:]  # the states it returns
        self._finish_flags = {
            name: self.flags[name] for name in (keyword_only(spec.finish) if spec.finish else ())
        }
        self._advance = self._bind(spec.advance)
        self._direction = self._bind(spec.direction)

    def __repr__(self) -> str:
        return f"Variant({self.name})"

    @property
    def two_pass(self) -> bool:
        """Whether sums over the whole tensor come between two passes."""
        return self.spec.finish is not None

    def advance(self, param: Tensor, grad: Tensor, states: list[Tensor], s: Any) -> list[Tensor]:
        """The new states, in the order of ``self.states``."""
        if not states:
            return []
        new = dict(zip(self._advanced, self._advance(param, grad, states, s), strict=True))
        return [new[name] for name in self.states]

    def direction(self, param: Tensor, grad: Tensor, states: list[Tensor], s: Any) -> Tensor:
        """The update, from the new states; from the old ones if the spec looks back."""
        update: Tensor = self._direction(param, grad, states, s)
        if self.spec.looks_back and any(update is state for state in states):
            return update.clone()  # an old state changes when the new ones are stored
        return update

    def finish(self, row: Sums, total: Sums, row_scores: Any, total_score: Any, s: Any) -> Any:
        """``(keep, rate)`` per row."""
        assert self.spec.finish is not None
        return self.spec.finish(row, total, row_scores, total_score, s, **self._finish_flags)

    def watch(
        self, row: Sums, total: Sums, row_scores: Any, total_score: Any, s: Any
    ) -> dict[str, Any]:
        """What users may watch, per row."""
        if self.spec.watched is None:
            return {}
        return self.spec.watched(row, total, row_scores, total_score, s, **self._finish_flags)

    def _bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Call ``function`` with a state for each name it asks for, None for those this variant lacks."""
        names = operands(function)[2:]
        flags = {name: self.flags[name] for name in keyword_only(function)}
        places = [self.states.index(name) if name in self.states else None for name in names]

        def call(param: Tensor, grad: Tensor, states: list[Tensor], s: Any) -> Any:
            operand = [None if place is None else states[place] for place in places]
            return function(param, grad, *operand, s, **flags)

        return call


def operands(function: Callable[..., Any]) -> list[str]:
    """The positional argument names of declared math, without the scalars at the end."""
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    return names[:-1]


def keyword_only(function: Callable[..., Any]) -> list[str]:
    """The flags of declared math."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
