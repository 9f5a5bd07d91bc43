"""From which optimizer a saved state comes: recognised by the options of its groups and the names of its states."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.storage.master import NAME as MASTER

if TYPE_CHECKING:
    from ingot.optimizer import FusedOptimizer

DECOUPLED = "decoupled_weight_decay"
# How torch.optim runs a step, not what it computes: dropped when its checkpoints are loaded.
TORCH_ONLY = ("foreach", "capturable", "differentiable", "fused", DECOUPLED)
_TORCH_RUN = {"foreach", "capturable", "differentiable", "fused"}

# The optimizers of torch.optim: the options and the states that tell them from one another. Of LBFGS's states only
# those with telling names are here: a "d" or a "t" may be anybody's.
_TORCH = {
    "ASGD": ("lr lambd alpha t0 weight_decay", "step eta mu ax"),
    "Adadelta": ("lr rho eps weight_decay", "step square_avg acc_delta"),
    "Adafactor": ("lr beta2_decay eps d weight_decay", "step row_var col_var variance"),
    "Adagrad": ("lr lr_decay eps weight_decay initial_accumulator_value", "step sum"),
    "Adam": ("lr betas eps weight_decay amsgrad", "step exp_avg exp_avg_sq max_exp_avg_sq"),
    "AdamW": ("lr betas eps weight_decay amsgrad", "step exp_avg exp_avg_sq max_exp_avg_sq"),
    "Adamax": ("lr betas eps weight_decay", "step exp_avg exp_inf"),
    "LBFGS": (
        "lr max_iter max_eval tolerance_grad tolerance_change history_size",
        "func_evals n_iter old_dirs old_stps H_diag prev_flat_grad prev_loss",
    ),
    "Muon": ("lr weight_decay momentum nesterov ns_coefficients ns_steps", "momentum_buffer"),
    "NAdam": ("lr betas eps weight_decay momentum_decay", "step exp_avg exp_avg_sq mu_product"),
    "RAdam": ("lr betas eps weight_decay", "step exp_avg exp_avg_sq"),
    "RMSprop": (
        "lr momentum alpha eps centered weight_decay",
        "step square_avg momentum_buffer grad_avg",
    ),
    "Rprop": ("lr etas step_sizes", "step prev step_size"),
    "SGD": ("lr momentum dampening weight_decay nesterov", "momentum_buffer"),
    "SparseAdam": ("lr betas eps", "step exp_avg exp_avg_sq"),
}


class Portrait(NamedTuple):
    """One optimizer, as its checkpoints show it."""

    name: str
    needed: frozenset[str]  # options that every one of its groups has
    options: frozenset[str]  # all of its own options
    states: frozenset[str]


def kinds(own: type[FusedOptimizer]) -> tuple[Portrait, ...]:
    """Every optimizer known: torch's, ours, and ``own``, which may be somebody's subclass."""
    from ingot import optim

    result = []
    for name, (words, states) in _TORCH.items():
        needed = frozenset(words.split())
        result.append(Portrait(f"torch.optim.{name}", needed, needed, frozenset(states.split())))
    ours = {kind.__name__: kind for kind in (getattr(optim, name) for name in optim.__all__)}
    for name, kind in {**ours, own.__name__: own}.items():
        options = frozenset(kind.rules)
        needed = frozenset(documented(kind)) - kind.unsaved
        result.append(Portrait(name, needed, options, frozenset({"step", *kind.spec.states})))
    return tuple(result)


def documented(kind: type[FusedOptimizer]) -> set[str]:
    """The options that every state of this optimizer has: its positional arguments."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    positional = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    return positional & kind.rules.keys()


def origins(
    own: type[FusedOptimizer], group: Mapping[str, Any], states: Iterable[str]
) -> list[str]:
    """The optimizers a group may come from: those it has the most options of, every needed one included.

    A user's own keys in a group, even one that some other optimizer has as an option, do not change the answer.
    """
    known = kinds(own)
    telling = frozenset(states) & frozenset().union(*(kind.states for kind in known))
    fitting = [kind for kind in known if kind.needed <= group.keys()]
    fitting = [kind for kind in fitting if telling <= kind.states] or fitting
    most = max((len(kind.options & group.keys()) for kind in fitting), default=0)
    fitting = [kind for kind in fitting if len(kind.options & group.keys()) == most]
    from_torch = bool(_TORCH_RUN & group.keys())
    names = [kind.name for kind in fitting if kind.name.startswith("torch.optim.") == from_torch]
    names = names or [kind.name for kind in fitting]
    if DECOUPLED in group:
        other = "Adam" if group[DECOUPLED] else "AdamW"
        others = (f"torch.optim.{other}", f"NpuFused{other}")
        names = [name for name in names if name not in others] or names
    return names


def accepted(own: type[FusedOptimizer]) -> set[str]:
    """The optimizers whose states this one goes on from: itself, what it is a subclass of, torch's of that name."""
    names = {kind.__name__ for kind in own.__mro__ if hasattr(kind, "spec")}
    names |= {f"torch.optim.{name.removeprefix('NpuFused')}" for name in names}
    # The same numbers where nothing decays; ``refuse_decay`` looks at that.
    adams = {"NpuFusedAdam", "NpuFusedAdamW", "torch.optim.Adam", "torch.optim.AdamW"}
    return names | adams if names & adams else names


def seems(names: list[str]) -> str:
    """The end of a message that names where a state comes from."""
    return f"; it seems to come from {' or '.join(names)}" if names else ""


def refuse_group(
    own: type[FusedOptimizer], number: int, group: Mapping[str, Any], states: Iterable[str]
) -> None:
    """Raise ValueError for a group of another optimizer."""
    names = origins(own, group, states)
    lacks = sorted(documented(own) - group.keys() - own.unsaved)
    if lacks or not accepted(own) & set(names):
        why = f": it lacks {', '.join(lacks)}" if lacks else ""
        raise ValueError(
            f"{own.__name__}: group {number} of the state is of another optimizer{why}{seems(names)}"
        )
    decoupled = own.decoupled_weight_decay
    if DECOUPLED in group and decoupled is not None and group.get("weight_decay"):
        refuse_decay(own, number, bool(group[DECOUPLED]), decoupled)


def refuse_decay(own: type[FusedOptimizer], number: int, saved: bool, wanted: bool) -> None:
    """Raise ValueError where Adam's weight decay would become AdamW's, or the other way round."""
    if saved == wanted:
        return
    stem, meaning = ("AdamW", "is decoupled") if saved else ("Adam", "is not decoupled")
    raise ValueError(
        f"{own.__name__}: group {number} of the state is of torch.optim.{stem} or NpuFused{stem}, "
        f"whose weight decay {meaning}; NpuFused{stem} takes it"
    )


def foreign_states(own: type[FusedOptimizer], names: Iterable[str]) -> dict[str, list[str]]:
    """Those states that are known to be of other optimizers, each with their names; unknown ones are the user's."""
    mine = {"step", MASTER, *own.spec.states}
    others = [name for name in names if name not in mine]
    if not others:
        return {}
    known = kinds(own)
    result = {name: [kind.name for kind in known if name in kind.states] for name in others}
    return {name: kinds_of for name, kinds_of in result.items() if kinds_of}
