"""What parameters are called in metrics: each by a name of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from ingot.step.roster import Groups

Names = Module | Iterable[tuple[str, Tensor]]


def given_names(owner: str, params: Sequence[Tensor], names: Names | None) -> dict[int, str]:
    """The names that a user gave, by ordinal, in their order; those of other parameters are left out."""
    if names is None:
        return {}
    ordinals = {id(param): ordinal for ordinal, param in enumerate(params)}
    found: dict[int, str] = {}
    for name, param in pairs_of(owner, names):
        if id(param) in ordinals:
            found[ordinals[id(param)]] = name
    if not found:
        raise ValueError(
            f"{owner}: names has no parameter of the optimizer; give the model that was handed to the optimizer, or "
            "pairs of a name and one of its parameters"
        )
    for name, count in Counter(found.values()).items():
        if count > 1:
            raise ValueError(
                f"{owner}: names has {name!r} for two parameters; each must have a name of its own"
            )
    return found


def pairs_of(owner: str, names: Any) -> list[tuple[str, Tensor]]:
    """Names and parameters; raises TypeError for what is neither a model nor pairs of these."""
    got = type(names).__name__
    if isinstance(names, Module):
        return [*names.named_parameters()]
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes, Tensor)):
        pairs: list[Any] = [*names]
        wrong = [pair for pair in pairs if not is_named(pair)]
        if not wrong:
            return pairs
        inside = ", ".join(type(each).__name__ for each in as_tuple(wrong[0]))
        got = f"{got} with an entry of ({inside})"
    raise TypeError(
        f"{owner}: names must be a torch.nn.Module or pairs of a name and a parameter, such as "
        f"model.named_parameters(); got {got}"
    )


def is_named(pair: Any) -> bool:
    """Whether this is a name and a tensor."""
    both = as_tuple(pair)
    return len(both) == 2 and isinstance(both[0], str) and isinstance(both[1], Tensor)


def as_tuple(entry: Any) -> tuple[Any, ...]:
    """An entry of a list of pairs, whatever it is."""
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def distinct_names(given: Mapping[int, str], groups: Groups) -> dict[int, str]:
    """The name of every parameter, by ordinal: as given, as in its group, or by its place.

    Parameters that their groups call the same are told apart by their group (``group1.weight``), and within one by
    their place as well (``group0[2].weight``). All parameters are looked at, whether they have a gradient or not: a
    name must be the same in every step.
    """
    forms = [each for number, group in enumerate(groups) for each in forms_of(number, group)]
    found, taken = dict(given), set(given.values())
    for level in range(3):
        left = [ordinal for ordinal in range(len(forms)) if ordinal not in found]
        counts = Counter(forms[ordinal][level] for ordinal in left)
        for ordinal in left:
            name = forms[ordinal][level]
            if counts[name] == 1 and name not in taken:
                found[ordinal] = name
        taken |= counts.keys()
    for ordinal, (*_, name) in enumerate(forms):
        if ordinal not in found:  # somebody gave this very name to another one
            while name in taken:
                name += "+"
            taken.add(name)
            found[ordinal] = name
    return found


def forms_of(number: int, group: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the parameters of a group may be called, each form telling more of them apart than the one before."""
    names = group.get("param_names") or [None] * len(group["params"])
    forms = []
    for position, name in enumerate(names):
        place = f"group{number}[{position}]"
        forms.append(
            (name, f"group{number}.{name}", f"{place}.{name}") if name else (place, place, place)
        )
    return forms
