"""8-bit states as they stand in checkpoints: codes that nobody takes for numbers, and the way back from numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ingot.storage.blockwise8 import Blockwise8

_MISTAKEN = (
    "this state of an ingot optimizer is 8-bit codes, not numbers; optimizer.state_dict(dtype=torch.float32) "
    "gives states that torch.optim takes"
)


class Codes(Tensor):
    """Integers that can be copied, moved, saved and compared, but not mixed with floating-point numbers.

    ``torch.optim.Optimizer.load_state_dict`` casts all states to the type of the parameter; its optimizers would go on
    with codes for numbers. Here the cast changes nothing, because ZeroRedundancyOptimizer makes it, too, before it
    hands the state to an optimizer that knows better; and the first operation of a step raises.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Every operation on codes comes by here."""
        kwargs = kwargs or {}
        if func is Tensor.to:
            args = [each for each in args if not is_number(each)]
            kwargs = {name: each for name, each in kwargs.items() if not is_number(each)}
        elif any(map(is_number, (*args, *kwargs.values()))):
            raise TypeError(_MISTAKEN)
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy; what torch does for its own tensors gives up on subclasses."""
        copied: Tensor = memo.setdefault(id(self), self.clone())
        return copied


torch.serialization.add_safe_globals([Codes])  # for torch.load(weights_only=True)


def is_number(value: Any) -> bool:
    """Whether an argument is about floating-point numbers: one of them, a tensor, a type, or a list with one."""
    if isinstance(value, Codes):
        return False
    if isinstance(value, Tensor):
        return value.is_floating_point()
    if isinstance(value, torch.dtype):
        return value.is_floating_point
    if isinstance(value, (list, tuple)):
        return any(map(is_number, value))
    return isinstance(value, float)


def plain(tensor: Tensor) -> Tensor:
    """Codes as an ordinary tensor; any other tensor itself."""
    if not isinstance(tensor, Codes):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def restore(form: Blockwise8, parts: Sequence[Tensor], value: Tensor) -> None:
    """Store float32 values; those that were decoded from codes become these codes again.

    ``form.store`` alone would not do it: the largest number of a block, from which the scale is computed, was rounded
    when it was decoded. Where blocks begin elsewhere than they did, values are rounded anew.
    """
    form.store(parts, value, None)
    codes, scale = parts
    fill = -value.numel() % form.block
    flat = value.reshape(-1)
    x = torch.cat([flat, flat[-1:].expand(fill)]).view(-1, form.block)
    missed = torch.zeros_like(x, dtype=torch.bool)
    missed.view(-1)[: flat.numel()] = (form.load(parts, torch.float32) != value).reshape(-1)
    rest = (missed.any(1) & scale.isfinite()).nonzero().squeeze(1)
    found = [rest[:0]]
    for top, ulps in product(form.tops, (0, 1, -1, 2, -2)):
        guess = form.roots(x[rest]).abs().amax(1) / top
        guess = (guess.view(torch.int32) + ulps).view(torch.float32)
        # The first numbers of a block rule most scales out; only then are all of them looked at.
        good = fits(form, x[rest, :8], guess).nonzero().squeeze(1)
        good = good[fits(form, x[rest[good]], guess[good])]
        found.append(rest[good])
        scale[rest[good]] = guess[good]
        rest = rest[torch.ones_like(rest, dtype=torch.bool).index_fill_(0, good, False)]
    blocks = torch.cat(found)
    again = torch.nn.functional.pad(codes.view(-1), (0, fill)).view_as(x)
    encoded = form.codes(form.roots(x[blocks]) / scale[blocks, None], None)
    again[blocks] = encoded.to(codes.dtype)
    codes.copy_(again.view(-1)[: codes.numel()].view_as(codes))


def fits(form: Blockwise8, x: Tensor, scale: Tensor) -> Tensor:
    """For every block, whether its numbers are exactly what codes with this scale decode to."""
    scale = scale[:, None]
    return (form.values(form.codes(form.roots(x) / scale, None), scale) == x).all(1)
