"""Options with two spellings: BertAdam's b1, b2 and e are betas and eps elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.declare.options import BETAS, Default


class BetaGroup(dict[str, Any]):
    """A parameter group in which ``betas`` is the pair of ``b1`` and ``b2``, whichever of them is written.

    BertAdam's documents say ``b1`` and ``b2``; the schedulers of torch that move the momentum read and write
    ``betas``. All three are ordinary entries, so that whoever reads the dictionary sees the same numbers.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if key == "betas" and isinstance(value, (tuple, list)) and len(value) == 2:
            super().__setitem__("b1", value[0])
            super().__setitem__("b2", value[1])
        elif key in ("b1", "b2") and "b1" in self and "b2" in self:
            super().__setitem__("betas", (self["b1"], self["b2"]))

    def update(self, *others: Any, **options: Any) -> None:
        """Write every entry by itself, in order."""
        for key, value in dict(*others, **options).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Write an entry unless there is one."""
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, other: Any) -> BetaGroup:  # type: ignore[override, misc]
        self.update(other)
        return self


def respelled(owner: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Given options with ``betas`` and ``eps`` turned into ``b1``, ``b2`` and ``e``; raises if both are given."""
    options = dict(options)
    for spelling, names in (("betas", ("b1", "b2")), ("eps", ("e",))):
        if spelling not in options:
            continue
        value = options.pop(spelling)
        both = [n for n in names if n in options and not isinstance(options[n], Default)]
        if both:
            raise ValueError(
                f"{owner}: {spelling}={value!r} and {', '.join(both)} are two spellings "
                "of the same option; give one of them"
            )
        if spelling == "betas":
            BETAS.check(owner, spelling, value)
        options.update(zip(names, value if spelling == "betas" else (value,), strict=True))
    # Plain numbers: torch.load refuses classes of ours in a checkpoint.
    return {n: float(v) if isinstance(v, Default) else v for n, v in options.items()}


def refuse_difference(owner: str, group: Mapping[str, Any]) -> None:
    """Raise ValueError where ``betas`` is not the pair of ``b1`` and ``b2``, as may be in a plain dictionary."""
    if "betas" not in group:
        return
    BETAS.check(owner, "betas", group["betas"])
    if tuple(group["betas"]) != (group["b1"], group["b2"]):
        raise ValueError(
            f"{owner}: betas={group['betas']!r} must be the same as b1={group['b1']!r}, "
            f"b2={group['b2']!r}"
        )
