"""FusedOptimizer: the step, and what torch.optim users expect around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ingot import backends, checkpoint
from ingot.declare import arguments
from ingot.declare.options import FLAG, MAX_GRAD_NORM, Rule, check_all
from ingot.metrics.tracked import Tracked
from ingot.reductions.norms import clip_in_place, reported
from ingot.step.in_backward import ReleasedGradients
from ingot.step.quick import is_undisturbed
from ingot.step.refuse import refuse_offload
from ingot.step.roster import all_params
from ingot.step.whole import whole_step
from ingot.storage import size
from ingot.storage.precision import RULES, SEED, Precision

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]

COMMON_RULES = {"maximize": FLAG, "max_grad_norm": MAX_GRAD_NORM, "rounding_seed": SEED}


class FusedOptimizer(Tracked):
    """What all optimizers share. A subclass declares ``spec`` and ``rules`` and its own options.

    Every step reads the tensors as they are at that moment. So parameters may be moved, replaced or get no
    gradient between steps. A step does the right thing or raises; what it refuses, it refuses before anything is
    changed. What holds for parameters that several processes share is described in docs/distributed.md.

    Args:
        params: parameters, named parameters, or parameter groups.
        defaults: the subclass's options.
        maximize: climb instead of descend (default False).
        max_grad_norm: scale gradients down, as they are read, so that the norm of all of them is at most this
            (default None: no clipping). ``.grad`` stays as it is; ``grad_norm`` has the norm of the last step.
        backend: the name of a backend (default None: the first in ``ingot.backends.TABLE`` that takes a bucket).
        state_dtype: type of the states: None for float32 (float64 for float64 parameters), "param" for the
            parameter's own type, torch.float32, torch.bfloat16, torch.float16, or "8bit" for blocks of 8-bit codes
            (tensors of 4096 elements or more); see docs/precision.md.
        master_weights: keep a float32 copy of 16-bit parameters in the state (default False).
        rounding: "nearest" or "stochastic", for parameters and states stored in 16 or 8 bits.
        rounding_seed: seed of the stochastic rounding (default 0); saved in checkpoints, may differ by group.
        offload: "cpu" to keep the states of parameters on an accelerator in host memory, and to make the step there
            (default None: states are where their parameter is); see docs/memory.md.
        **unknown: an option that the class does not have; refused with TypeError.
    """

    rules: ClassVar[Mapping[str, Rule]]
    unsaved: ClassVar[frozenset[str]] = frozenset()  # options that checkpoints of the original lack
    # For Adam and AdamW, which have the same options and states: told apart in checkpoints by this.
    decoupled_weight_decay: ClassVar[bool | None] = None
    # torch.amp.GradScaler then hands over grad_scale and found_inf instead of unscaling by itself.
    _step_supports_amp_scaling = True
    found_inf: Tensor
    grad_scale: Tensor | None

    def __init__(
        self,
        params: Params,
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        max_grad_norm: float | None = None,
        backend: str | None = None,
        state_dtype: torch.dtype | str | None = None,
        master_weights: bool = False,
        rounding: str = "nearest",
        rounding_seed: int = 0,
        offload: str | None = None,
        **unknown: Any,
    ) -> None:
        arguments.refuse_unknown(type(self), unknown)
        if backend is not None:
            backends.named(backend)
        self.backend = backend
        kept = dict(master_weights=master_weights, rounding=rounding, offload=offload)
        check_all(type(self).__name__, RULES, {"state_dtype": state_dtype, **kept})
        self.precision = Precision(state_dtype, bool(master_weights), rounding, offload)
        self._refresh()
        common = dict(maximize=maximize, max_grad_norm=max_grad_norm, rounding_seed=rounding_seed)
        self.check({**common, **defaults})
        arguments.refuse_no_params(type(self).__name__, params)
        super().__init__(params, {**common, **defaults})

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        """Raise ValueError for options that are not allowed; subclasses add what concerns several options."""
        check_all(cls.__name__, cls.all_rules(), group)
        arguments.refuse_wrong_names(cls.__name__, group)

    @classmethod
    def all_rules(cls) -> dict[str, Rule]:
        """The rules of all options a parameter group has; nothing else in a group decides about a step."""
        return {**COMMON_RULES, **cls.rules}

    @classmethod
    def respell(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Bring other spellings of options into the usual one."""
        return options

    @classmethod
    def group_of(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The dictionary that a parameter group is kept in."""
        return dict(options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; its options are checked first.

        Args:
            param_group: ``params``, and options that differ from the defaults.
        """
        name = type(self).__name__
        if isinstance(param_group, dict):
            options = self.group_of(self.defaults)
            options.update(self.respell(param_group))
            arguments.refuse_lacking(name, options)
            self.check(options)
            arguments.refuse_whole(name, "a group", param_group)
            arguments.refuse_no_params(name, options.get("params"))
            param_group = options
        super().add_param_group(param_group)
        try:
            arguments.refuse_wrong_names(name, param_group)
            for param in param_group["params"]:
                self.precision.wide(param.dtype)
                if self._offload is not None:
                    refuse_offload(name, param)
            if self._released is not None:
                self._released.watch()
        except ValueError as error:
            self.param_groups.pop()
            raise ValueError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
        if self._offload is not None:
            self._offload.attach(self.all_params())

    def step(self, *call: Any, **named: Any) -> Any:
        """Make one step.

        Args:
            *call: optionally ``closure``, which evaluates the model and returns the loss; it runs first, with
                gradients enabled. Hooks see the arguments as they were given.
            **named: ``closure``, or ``grad_scaler``, which torch_npu's scaler gives.

        Returns:
            What the closure returned, else None.
        """
        # grad_scaler is not declared: torch's scaler would give it too then, and warn.
        quick = self._quick
        if quick is not None and call in ((), (None,)) and not named and is_undisturbed(self):
            done = quick.step(quick.plan, self.__dict__)
            if done is not False:
                self._grad_norm = None if done is True else (done, quick.norm_dtype)
                if self._tracker is not None:
                    self._tracker.made += 1
                return None
            self._quick = None
        return whole_step(self, *call, **named)

    # torch would otherwise wrap this method to run hooks and to mark the step in its profiler. whole_step is wrapped
    # instead: the quick path is not taken where a hook is to be run or a profiler is on.
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of all gradients in the last step made, unscaled, before clipping; None if nothing was clipped."""
        if isinstance(self._grad_norm, tuple):  # as the step left it
            self._grad_norm = reported(*self._grad_norm)
        return self._grad_norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters: with ``set_to_none`` to None (the default), else to zeros."""
        quick = self._quick if set_to_none else None
        if (
            quick is None
            or not is_undisturbed(self)
            or not quick.forget_gradients(self.param_groups)
        ):
            super().zero_grad(set_to_none)

    def state_bytes(self) -> int:
        """The memory that all states take in this process, in bytes; they are made by the first step."""
        return size.state_bytes(self.state)

    def all_params(self) -> list[Tensor]:
        """All parameters of all groups, in order."""
        return all_params(self.param_groups)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> Tensor:
        """Scale the gradients of all parameters in place, so that their common norm is at most ``max_norm``.

        Args:
            max_norm: the largest norm allowed.
            norm_type: 2, or any other p-norm; ``math.inf`` for the largest magnitude.

        Returns:
            The norm before clipping, a 0-dim tensor; 0 if there are no gradients.
        """
        if self._released is not None:
            self._released.refuse_clipping("clip_grad_norm_fused_")
        with torch.no_grad():
            return clip_in_place(self._everything(), max_norm, norm_type)

    def release_gradients(self) -> ReleasedGradients:
        """Update each parameter inside ``backward()``, as soon as its gradient is complete, and free the gradient.

        :class:`~ingot.step.in_backward.ReleasedGradients`, the handle it returns, and docs/memory.md say more.
        """
        return ReleasedGradients(self)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def state_dict(self, *, dtype: torch.dtype | str | None = None) -> dict[str, Any]:
        """The state as torch.optim lays it out; step counts as 0-dim tensors, as torch.optim has them.

        Args:
            dtype: torch.float32 for states that torch.optim takes, "kept" for ours as kept; see docs/precision.md.
        """
        return checkpoint.packed(self, dtype)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this optimizer, of its torch.optim or torch_npu.optim counterpart.

        Raises ValueError for a state of another optimizer or of other shapes; nothing is changed then. States are
        copied, and brought to the device of their parameter and to this optimizer's ``state_dtype``.
        """
        checkpoint.load(self, state_dict)
        if self._tracker is not None:
            self._tracker.recount(self.all_params(), self.state)

    def __repr__(self) -> str:
        head, rest = super().__repr__().split("\n", 1)
        param = next(iter(self.all_params()), torch.empty(0, device="cpu"))
        chosen = f"{backends.choose_for(param.device)[0]} (chosen for {param.device.type})"
        states = self.precision.described(param.dtype)
        return f"{head}\nBackend: {self.backend or chosen}\nStates: {states}\n{rest}"

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: vars(self).get(name) for name in ("backend", "precision", "_tracker")}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it: groups added later would get it
        self._refresh()
