"""Who the parameters of an optimizer are: in which group each stands, what it is called, over whom it is split.

Worked out once, and again only when a group's list or the layout of a DTensor differs. It holds no tensor: a
parameter that its user has dropped is not kept alive. Parameters are told apart by their identity; whatever else
a step relies on is read from the tensors themselves in every step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ingot.sharding.dtensor import Split, is_dtensor, local, spec_of, splits_of, sum_dtype_of

Groups = Sequence[Mapping[str, Any]]  # optimizer.param_groups
PLAIN = frozenset((Tensor, Parameter))
KIND = attrgetter("device", "dtype")


def all_params(groups: Groups) -> list[Tensor]:
    """All parameters of all groups, in order; their places in this list are their ordinals."""
    return list(chain.from_iterable(group["params"] for group in groups))


class Place(NamedTuple):
    """Where a parameter stands in its optimizer; messages begin with it."""

    owner: str
    group: int
    position: int
    name: str | None

    def __str__(self) -> str:
        return f"{self.owner}: {self.in_optimizer}"

    @property
    def in_optimizer(self) -> str:
        """The same without the optimizer."""
        name = f" {self.name!r}" if self.name else ""
        return f"parameter {self.position}{name} of group {self.group}"


class Roster:
    """The parameters of one optimizer.

    Attributes:
        owner: the name of the optimizer's class, which begins every message.
        group_of: the number of its group, per ordinal.
        splits: over which process groups it is split, per ordinal.
        sharded: the ordinals of those that are split at all.
        rounds: the ordinals of the parameters that can be updated together, one list after the other; None for all.
        device: where sums over processes are made; see ``find_home``.
        sum_dtype: in which type.
    """

    def __init__(self, owner: str, groups: Groups, params: Sequence[Tensor]) -> None:
        self.owner = owner
        self.sizes = [len(group["params"]) for group in groups]
        self.ids = [*map(id, params)]
        self.types = [*map(type, params)]
        self.group_of = [number for number, size in enumerate(self.sizes) for _ in range(size)]
        self.rounds = rounds_of(self.ids)
        self.plain = PLAIN.issuperset(self.types)
        # holds() compares specs by identity. They are kept alive, so that no other object can get the same identity.
        placed = [] if self.plain else [i for i, param in enumerate(params) if is_dtensor(param)]
        self.specs = None if self.plain else {i: spec_of(params[i]) for i in placed}
        self.splits = [Split()] * len(params) if self.plain else splits_of(params)
        self.sharded = [i for i, split in enumerate(self.splits) if split.groups]
        self.find_home(params)

    def find_home(self, params: Sequence[Tensor]) -> None:
        """See where, and in which type, sums over processes are made, from where the parameters are now.

        ``model.to()`` moves parameters that stay the same objects, which ``holds`` does not notice. So optimizers that
        share anything with other processes ask for this in every step; it looks at every parameter, or every shard.
        """
        shards: list[Tensor] = [params[i]._local_tensor for i in self.sharded]  # type: ignore[attr-defined]
        summed = shards or params
        self.device = local(summed[0]).device if summed else torch.device("cpu")
        self.sum_dtype = sum_dtype_of({*map(KIND, summed)})

    def holds(self, groups: Groups, params: Sequence[Tensor]) -> bool:
        """Whether the parameters are still those of this roster, split as they were."""
        if self.ids != [*map(id, params)] or self.types != [*map(type, params)]:
            return False
        if self.sizes != [len(group["params"]) for group in groups]:
            return False
        if self.specs is None:
            return True
        return all(params[i]._spec is spec for i, spec in self.specs.items())  # type: ignore[attr-defined]

    def place(self, ordinal: int, groups: Groups) -> Place:
        """Where a parameter stands, for messages."""
        number = self.group_of[ordinal]
        position = ordinal - sum(self.sizes[:number])
        names = groups[number].get("param_names")
        return Place(self.owner, number, position, names[position] if names else None)


def is_plain(tensor: Tensor) -> bool:
    """Whether a backend may treat the tensor as a block of numbers."""
    return type(local(tensor) if is_dtensor(tensor) else tensor) in PLAIN


def rounds_of(ids: Sequence[int]) -> list[list[int] | None]:
    """A parameter that stands in the list twice gets two updates, as torch.optim gives it: in two rounds."""
    if len(set(ids)) == len(ids):
        return [None]
    seen: Counter[int] = Counter()
    rounds: defaultdict[int, list[int]] = defaultdict(list)
    for ordinal, each in enumerate(ids):
        rounds[seen[each]].append(ordinal)
        seen[each] += 1
    return [*rounds.values()]
