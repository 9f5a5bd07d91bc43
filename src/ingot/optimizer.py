"""FusedOptimizer: the step, and what torch.optim users expect around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import required

from ingot import backends, checkpoint
from ingot.declare import arguments
from ingot.declare.options import FLAG, MAX_GRAD_NORM, Rule, check_all
from ingot.declare.spec import Spec
from ingot.reductions import norms as clip
from ingot.reductions import rows as norms
from ingot.sharding import collectives as exchange
from ingot.sharding.dtensor import any_sharded
from ingot.step.handover import handed_over, leaving_no_scale
from ingot.step.plan import Bucket, Planner
from ingot.storage.precision import RULES, SEED, Precision

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Common(TypedDict, total=False):
        """The keyword-only options of every optimizer, see :class:`FusedOptimizer`."""

        maximize: bool
        max_grad_norm: float | None
        backend: str | None
        state_dtype: torch.dtype | str | None
        master_weights: bool
        rounding: str
        rounding_seed: int


Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class FusedOptimizer(torch.optim.Optimizer):
    """What all optimizers share. A subclass declares ``spec`` and ``rules`` and its own options.

    Every step reads the tensors as they are at that moment. So parameters may be moved, replaced or get no
    gradient between steps. A step does the right thing or raises; what it refuses, it refuses before anything is
    changed (the one exception, processes that disagree about gradients, is described in docs/distributed.md).

    Args:
        params: parameters, named parameters, or parameter groups.
        defaults: the subclass's options.
        maximize: climb instead of descend (default False).
        max_grad_norm: scale gradients down, as they are read, so that the norm of all of them is at most this
            (default None: no clipping). ``.grad`` stays as it is; ``grad_norm`` has the norm of the last step.
        backend: the name of a backend (default None: the first in ``ingot.backends.TABLE`` that takes a bucket).
        state_dtype: type of the states: None for float32 (float64 for float64 parameters), "param" for the
            parameter's own type, torch.float32, torch.bfloat16 or torch.float16; see docs/precision.md.
        master_weights: keep a float32 copy of 16-bit parameters in the state (default False).
        rounding: "nearest" or "stochastic", for parameters and states stored in 16 bits.
        rounding_seed: seed of the stochastic rounding (default 0); saved in checkpoints, may differ by group.
    """

    spec: ClassVar[Spec]
    rules: ClassVar[Mapping[str, Rule]]
    unsaved: ClassVar[frozenset[str]] = frozenset()  # options that checkpoints of the original lack
    # For Adam and AdamW, which have the same options and states: told apart in checkpoints by this.
    decoupled_weight_decay: ClassVar[bool | None] = None
    # torch.amp.GradScaler then hands over grad_scale and found_inf instead of unscaling by itself.
    _step_supports_amp_scaling = True
    found_inf: Tensor
    grad_scale: Tensor | None
    # The norm of all gradients in the last step made, unscaled, before clipping; None if nothing was clipped.
    grad_norm: Tensor | None
    # A process group, where its other members have other parameters of the same model in optimizers of their own
    # (ZeroRedundancyOptimizer, pipeline stages): gradients are then clipped by the norm over all of them.
    norm_group: Any = None

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
        **unknown: Any,
    ) -> None:
        arguments.refuse_unknown(type(self), unknown)
        if backend is not None:
            backends.named(backend)
        self.backend = backend
        options = dict(state_dtype=state_dtype, master_weights=master_weights, rounding=rounding)
        check_all(type(self).__name__, RULES, options)
        self.precision = Precision(state_dtype, bool(master_weights), rounding)
        self._refresh()
        common = dict(maximize=maximize, max_grad_norm=max_grad_norm, rounding_seed=rounding_seed)
        self.check({**common, **defaults})
        arguments.refuse_no_params(type(self).__name__, params)
        super().__init__(params, {**common, **defaults})

    def _refresh(self) -> None:
        """Forget everything that was derived from the state."""
        self._planner = Planner(self)
        self.grad_norm = None

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        """Raise ValueError for options that are not allowed; subclasses add what concerns several options."""
        common = {"maximize": FLAG, "max_grad_norm": MAX_GRAD_NORM, "rounding_seed": SEED}
        check_all(cls.__name__, {**common, **cls.rules}, group)
        arguments.refuse_wrong_names(cls.__name__, group)

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
            lacking = [option for option, value in options.items() if value is required]
            if lacking:
                raise ValueError(f"{name}: {', '.join(lacking)} must be given")
            self.check(options)
            arguments.refuse_whole(name, "a group", param_group)
            arguments.refuse_no_params(name, options.get("params"))
            param_group = options
        super().add_param_group(param_group)
        try:
            arguments.refuse_wrong_names(name, param_group)
            for param in param_group["params"]:
                self.precision.stored(param.dtype)
        except ValueError as error:
            self.param_groups.pop()
            raise ValueError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """The step with its hooks around it, as torch wraps it; where one fails, no scale is left behind."""
        return leaving_no_scale(torch.optim.Optimizer.profile_hook_step(func))

    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **scaler: Any) -> Any:
        """Make one step.

        Args:
            closure: evaluates the model and returns the loss; runs first, with gradients enabled.
            **scaler: ``grad_scaler``, which torch_npu's scaler gives; if it were a named argument, torch's would
                give it too, and warn.

        Returns:
            What the closure returned, else None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            # Step counts are Python numbers, so whether to step must be known here: the one wait of a step.
            with handed_over(self, **scaler):
                if not self._overflowed():
                    self._run(self._plan())
        except BaseException:
            # GradScaler takes these away after a step, but not after a failed one: the next would use them again.
            if vars(self).pop("found_inf", None) is not None:
                vars(self).pop("grad_scale", None)
            raise
        return loss

    def _overflowed(self) -> bool:
        """Whether a GradScaler found an overflow, here or on a process that holds other shards."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            return False
        return exchange.overflowed(self, found_inf, getattr(self, "grad_scale", None))

    def _plan(self) -> list[Bucket]:
        """The buckets of this step; if that fails, processes that would wait for this one are told."""
        try:
            return self._planner.plan()
        except Exception:
            with contextlib.suppress(RuntimeError):
                if any(map(self.spec.clips, self.param_groups)):
                    exchange.gradient_sums(self, {}, backends.squares, failed=True)
                elif self.spec.finish is not None and self.is_sharded():
                    norms.sharded_factors(self, [], [], failed=True)
            raise

    def _run(self, buckets: list[Bucket]) -> None:
        """Scale, then run every bucket; those of sharded two-pass optimizers meet between their passes."""
        clip.unscale(buckets, getattr(self, "grad_scale", None))
        self.grad_norm = clip.clip_in_step(self, buckets)
        for bucket in buckets:
            bucket.commit(self.state)
        for bucket in buckets:
            if not bucket.sharded:
                bucket.backend.run(bucket)
        if self.spec.finish is not None and self.is_sharded():
            sharded = [bucket for bucket in buckets if bucket.sharded]
            sums = [bucket.backend.first(bucket) for bucket in sharded]
            for bucket, factors in zip(
                sharded, norms.sharded_factors(self, sharded, sums), strict=True
            ):
                bucket.backend.second(bucket, *factors)
        # Backends see local parts. Autograd must learn that the whole was changed, too.
        for bucket in buckets:
            if bucket.dtensors:
                increment_version(bucket.owners)

    def all_params(self) -> list[Tensor]:
        """All parameters of all groups, in order."""
        return list(chain.from_iterable(group["params"] for group in self.param_groups))

    def is_sharded(self) -> bool:
        """Whether other processes hold other parts of one of the parameters."""
        return any(any_sharded(group["params"]) for group in self.param_groups)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> Tensor:
        """Scale the gradients of all parameters in place, so that their common norm is at most ``max_norm``.

        Args:
            max_norm: the largest norm allowed.
            norm_type: 2, or any other p-norm; ``math.inf`` for the largest magnitude.

        Returns:
            The norm before clipping, a 0-dim tensor; 0 if there are no gradients.
        """
        with torch.no_grad():
            return clip.clip_in_place(self, float(max_norm), float(norm_type))

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim lays it out; step counts as 0-dim tensors, as torch.optim has them."""
        return checkpoint.packed(self)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this optimizer, of its torch.optim or torch_npu.optim counterpart.

        Raises ValueError for a state of another optimizer or of other shapes; nothing is changed then. States are
        copied, and brought to the device of their parameter and to this optimizer's ``state_dtype``.
        """
        checkpoint.load(self, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "backend": self.backend, "precision": self.precision}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it: groups added later would get it
        self._refresh()
