"""How npu_fusion_attention's tensors lie: its layouts, and what of its arguments is refused.

B batch, S sequence, H all heads side by side, N heads, D width of a head, T all sequences in a row.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch

_DIMENSIONS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}
_TYPES = {torch.float16, torch.bfloat16, torch.float32}


def refuse(what: str) -> NoReturn:
    """Raises the error for an argument that the operator does not take."""
    raise RuntimeError(f"npu_fusion_attention: {what}")


def check_options(
    input_layout: str,
    padding_mask: torch.Tensor | None,
    keep_prob: float,
    inner_precise: int,
    softmax_layout: str,
) -> None:
    """Raises RuntimeError for options the operator does not take."""
    if input_layout not in _DIMENSIONS:
        refuse(f"input_layout must be one of {', '.join(_DIMENSIONS)}, not {input_layout!r}")
    if padding_mask is not None:
        refuse("padding_mask is not supported, here as on an NPU")
    if not 0 < keep_prob <= 1:
        refuse(f"keep_prob must be in (0, 1], not {keep_prob}")
    if inner_precise not in (0, 1, 2):
        refuse(f"inner_precise must be 0, 1 or 2, not {inner_precise}")
    if softmax_layout and (softmax_layout, input_layout) != ("TND", "TND"):
        refuse(
            f"softmax_layout must be '', or 'TND' with input_layout 'TND', not {softmax_layout!r}"
        )


def check_tensors(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pse: torch.Tensor | None,
    head_num: int,
    layout: str,
) -> None:
    """Raises RuntimeError for tensors that do not fit together or into the layout."""
    types = {t.dtype for t in (query, key, value, pse) if t is not None}
    if len(types) > 1 or not types <= _TYPES:
        names = ", ".join(sorted(map(str, types)))
        refuse(f"query, key, value and pse must all be float16, bfloat16 or float32, not {names}")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != _DIMENSIONS[layout]:
            refuse(
                f"{name} has {tensor.dim()} dimensions, input_layout {layout!r} has "
                f"{_DIMENSIONS[layout]}"
            )
    width = query.shape[-1]
    if "N" in layout and query.shape[layout.index("N")] != head_num:
        refuse(f"head_num is {head_num}, but query has the shape {tuple(query.shape)}")
    if "H" in layout and (head_num < 1 or width % head_num):
        refuse(f"head_num {head_num} does not divide the width {width} of query")
    heads = key.shape[layout.index("N")] if "N" in layout else key.shape[2] * head_num // width
    if heads < 1 or head_num % heads:
        refuse(f"the {head_num} heads of query are no multiple of the {heads} of key")
    if pse is not None and (pse.dim() != 4 or layout == "TND"):
        refuse("the simulated NPU (ingot.npusim) takes pse with four dimensions and not with TND")


def to_bnsd(tensor: torch.Tensor, layout: str, width: int) -> torch.Tensor:
    """Returns the tensor as `[B, N, S, D]`; `width` is that of a head."""
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    batched = tensor if layout == "BSH" else tensor.transpose(0, 1)
    return batched.reshape(*batched.shape[:2], -1, width).transpose(1, 2)


def from_bnsd(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns the tensor, given as `[B, N, S, D]`, in the layout."""
    if layout == "BNSD":
        return tensor
    batched = tensor.transpose(1, 2)
    if layout == "BSND":
        return batched.contiguous()
    batched = batched.flatten(2)
    return batched if layout == "BSH" else batched.transpose(0, 1).contiguous()


def bounds(ends: Sequence[int] | None, name: str, tokens: int) -> list[tuple[int, int]]:
    """Returns where each sequence of a TND tensor starts and ends.

    Args:
        ends: the lengths, added up; zeros at the end stand for sequences that are left out.
        name: what the argument is called.
        tokens: how many there are.
    """
    if not ends:
        refuse(f"input_layout 'TND' needs {name}")
    ends = list(ends)
    while len(ends) > 1 and ends[-1] == 0:
        ends.pop()
    starts = [0, *ends[:-1]]
    if any(start > end for start, end in zip(starts, ends, strict=True)) or ends[-1] > tokens:
        refuse(f"{name} must rise up to at most {tokens}, not {ends}")
    return list(zip(starts, ends, strict=True))
