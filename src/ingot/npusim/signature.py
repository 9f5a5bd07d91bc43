"""What the simulation needs to know of an operator, read from its schema once."""

import functools
from typing import Any, NamedTuple

import torch


class Signature(NamedTuple):
    """An operator's schema in short.

    Attributes:
        operator: its name without the overload, such as `aten::add`.
        names: the names of its arguments, in order.
        tensors: for each argument, whether it is one tensor.
        written: the names of the arguments it writes to.
        outs: the names of its `out=` arguments.
        pointwise: whether torch tags it as pointwise.
    """

    operator: str
    names: tuple[str, ...]
    tensors: tuple[bool, ...]
    written: frozenset[str]
    outs: frozenset[str]
    pointwise: bool


@functools.cache  # to read a schema takes longer than a small kernel
def signature(op: Any) -> Signature:
    """Returns the signature of an operator."""
    arguments = op._schema.arguments
    return Signature(
        operator=op._schema.name,
        names=tuple(argument.name for argument in arguments),
        tensors=tuple(str(argument.type) == "Tensor" for argument in arguments),
        written=frozenset(a.name for a in arguments if a.alias_info and a.alias_info.is_write),
        outs=frozenset(argument.name for argument in arguments if argument.is_out),
        pointwise=torch.Tag.pointwise in op.tags,
    )
