"""BertAdam: Adam without bias correction, with warm-up and clipping built in (Google's BERT optimizer)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.declare.groups import BetaGroup, refuse_difference, respelled
from ingot.declare.options import BETA, EPS, FLAG, LR, WEIGHT_DECAY, Default, Number, Rule, real
from ingot.declare.spec import Clip, Group, Spec, learning_rate
from ingot.declare.words import sqrt
from ingot.optim.moments import MOMENTS_AMSGRAD, advance
from ingot.optimizer import FusedOptimizer, Params

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ingot.declare.arguments import Common

# After the warm-up; x is the share of t_total that is done, warmup the share that warms up.
# Differs from torch_npu: linear with warmup=-1 starts at the full rate (it halves it), cosine and poly work.
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_linear": lambda x, warmup: max((x - 1) / (warmup - 1), 0.0),
    "warmup_constant": lambda x, warmup: 1.0,
    "warmup_cosine": lambda x, warmup: (1 + math.cos(math.pi * x)) / 2,
    "warmup_poly": lambda x, warmup: math.sqrt(max(1 - x, 0.0)),
}


class Scalars(NamedTuple):
    """What is the same for all elements of a step."""

    keep: float  # 1: the decay goes through the update
    rate: float  # lr times the schedule
    beta1: float
    comp1: float
    beta2: float
    comp2: float
    eps: float
    weight_decay: float


def scheduled(group: Group, done: int) -> Any:
    """The rate after ``done`` steps: lr times the schedule."""
    lr, t_total = learning_rate(group), group["t_total"]
    if t_total == -1:
        return lr
    x, warmup = done / t_total, max(group["warmup"], 0.0)
    return lr * (x / warmup if x < warmup else SCHEDULES[group["schedule"]](x, warmup))


def scalars(group: Group, step: int) -> Scalars:
    """The scalars of step ``step``, counted from 1; the schedule counts from 0."""
    return Scalars(
        keep=1.0,
        rate=scheduled(group, step - 1),
        beta1=group["b1"],
        comp1=1 - group["b1"],
        beta2=group["b2"],
        comp2=1 - group["b2"],
        eps=group["e"],
        weight_decay=group["weight_decay"],
    )


def direction(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    max_exp_avg_sq: Any,
    s: Any,
    *,
    amsgrad: bool,
    weight_decay: bool,
) -> Any:
    """The step without bias correction, with the decay inside."""
    denom = sqrt(max_exp_avg_sq if amsgrad else exp_avg_sq) + s.eps
    update = exp_avg / denom
    return update + s.weight_decay * param if weight_decay else update


def clips(group: Group) -> tuple[Clip, ...]:
    """Clip by the norm of one group and dtype, or of everything; not at all for max_grad_norm <= 0."""
    max_norm = group["max_grad_norm"]
    scope = "all" if group["clip_scope"] == "global" else "group"
    return (Clip(max_norm, scope),) if max_norm > 0 else ()


class NpuFusedBertAdam(FusedOptimizer):
    """BertAdam: Adam without bias correction, with gradient clipping and a warm-up schedule.

    ::

        grad       = grad * min(1, max_grad_norm / (norm + 1e-6))        (norm: per group and dtype)
        exp_avg    = b1 * exp_avg + (1 - b1) * grad
        exp_avg_sq = b2 * exp_avg_sq + (1 - b2) * grad^2
        update     = exp_avg / (sqrt(exp_avg_sq) + e) + weight_decay * param
        param      = param - lr * f(x) * update                          (x: steps done / t_total)

        f(x) = x / warmup while x < warmup, then
               warmup_linear: max((x - 1) / (warmup - 1), 0)     warmup_constant: 1
               warmup_cosine: (1 + cos(pi * x)) / 2              warmup_poly: sqrt(max(1 - x, 0))
        f(x) = 1 without t_total: the rate is constant, warmup and schedule have no effect

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: learning rate, a float or a tensor of one element (default 1e-3).
        warmup: share of ``t_total`` that warms up, in [0, 1); -1 for none (default -1). Without ``t_total``
            it has no effect, and a warning says so.
        t_total: number of steps of the schedule (default -1: none, the rate is constant).
        schedule: 'warmup_linear' (the default), 'warmup_constant', 'warmup_cosine' or 'warmup_poly'. Has no
            effect without ``t_total``.
        b1: decay rate of the average, in [0, 1) (default 0.9).
        b2: decay rate of the average of squares, in [0, 1) (default 0.999).
        e: added to the denominator (default 1e-6).
        weight_decay: weight decay, inside the update (default 0.01).
        max_grad_norm: clip gradients to this norm; a number, -1 for no clipping (default 1.0).
        betas: another spelling of ``(b1, b2)``; groups have both, and either may be written.
        eps: another spelling of ``e``.
        amsgrad: use the maximum of ``exp_avg_sq`` (default False).
        clip_scope: 'group' (one norm per parameter group and dtype) or 'global' (one for everything).
        **common: ``maximize``, ``backend``, ``state_dtype``, ``master_weights``, ``rounding``,
            ``rounding_seed``, ``offload``; see ``help(ingot.optimizer.FusedOptimizer)`` after ``import ingot``.

    Example:
        >>> import torch
        >>> from ingot.optim import NpuFusedBertAdam
        >>> param = torch.ones(3, requires_grad=True)
        >>> optimizer = NpuFusedBertAdam([param], lr=0.1, warmup=0.5, t_total=4)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     param.square().sum().backward()
        ...     optimizer.step()
        >>> optimizer.get_lr()
        [0.1]
        >>> param.detach()
        tensor([0.7870, 0.7870, 0.7870])
    """

    spec = Spec("bert_adam", MOMENTS_AMSGRAD, scalars, advance, direction, clips=clips)
    rules = {
        "lr": LR,
        "warmup": Rule(
            "warmup", lambda x: real(x) == -1 or 0 <= real(x) < 1, "-1 or in the interval [0, 1)"
        ),
        "t_total": Rule("t_total", lambda x: real(x) == -1 or real(x) > 0, "-1 or a number > 0"),
        "schedule": Rule("schedule parameter", lambda x: x in SCHEDULES, f"one of {[*SCHEDULES]}"),
        "b1": BETA,
        "b2": BETA,
        "e": EPS,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": Rule(
            "max_grad_norm value", lambda x: not math.isnan(real(x)), "a number; -1 for no clipping"
        ),
        "amsgrad": FLAG,
        "clip_scope": Rule("clip_scope", lambda x: x in ("group", "global"), "'group' or 'global'"),
    }

    def __init__(  # type: ignore[misc]  # max_grad_norm is positional here
        self,
        params: Params,
        lr: Number = 1e-3,
        warmup: float = -1,
        t_total: float = -1,
        schedule: str = "warmup_linear",
        b1: float = Default(0.9),
        b2: float = Default(0.999),
        e: float = Default(1e-6),
        weight_decay: float = 0.01,
        max_grad_norm: float = 1.0,
        *,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        amsgrad: bool = False,
        clip_scope: str = "group",
        **common: Unpack[Common],
    ) -> None:
        defaults: dict[str, Any] = dict(
            lr=lr,
            warmup=warmup,
            t_total=t_total,
            schedule=schedule,
            b1=b1,
            b2=b2,
            e=e,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            amsgrad=amsgrad,
            clip_scope=clip_scope,
        )
        if betas is not None:
            defaults["betas"] = betas
        if eps is not None:
            defaults["eps"] = eps
        defaults = self.respell(defaults)
        defaults["betas"] = defaults["b1"], defaults["b2"]  # schedulers look for this name
        super().__init__(params, defaults, **common)

    @classmethod
    def respell(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Turn ``betas`` and ``eps`` into ``b1``, ``b2`` and ``e``."""
        return respelled(cls.__name__, options)

    @classmethod
    def group_of(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A group in which ``betas`` is always ``(b1, b2)``."""
        group = BetaGroup()
        group.update(options)
        return group

    @classmethod
    def check(cls, group: Mapping[str, Any]) -> None:
        """Both spellings of the decay rates must say the same."""
        super().check(group)
        refuse_difference(cls.__name__, group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; says so where its warm-up can have no effect.

        Args:
            param_group: ``params``, and options that differ from the defaults.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["t_total"] == -1 and group["warmup"] > 0:
            warnings.warn(
                f"{type(self).__name__}: warmup={group['warmup']!r} has no effect without t_total, the "
                "number of steps it is a share of",
                stacklevel=2,
            )

    def get_lr(self) -> list[float]:
        """The rate that the next step will use, one per parameter, in the order of the groups."""
        return [
            float(scheduled(group, int(self.state.get(param, {}).get("step", 0))))
            for group in self.param_groups
            for param in group["params"]
        ]
