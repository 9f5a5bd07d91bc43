"""Attention in plain formulas, and tensors to try it on, for the tests of npu_fusion_attention."""

from typing import Any

import torch

CLOSE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    # The operator rounds its result once; gradients are rounded where float16 tensors meet.
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def attention(*args: Any, **kwargs: Any) -> Any:
    return torch.ops.npu.npu_fusion_attention(*args, **kwargs)


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    hidden: torch.Tensor | None = None,
    pse: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """The formula of the document, for [B, N, S, D]; a query that sees nothing gets zeros."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    weights = (scale * (query @ key.transpose(2, 3) + pse)).exp()
    if hidden is not None:
        weights = weights * ~hidden
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0) @ value


def make(heads: int = 4, kv_heads: int = 4, queries: int = 5, keys: int = 7) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, heads, queries, 6), (2, kv_heads, keys, 6), (2, kv_heads, keys, 6))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def hidden_by(
    mode: int, queries: int, keys: int, pre: int, after: int, prefix: int
) -> torch.Tensor:
    """What a mode hides, pair by pair, read off the document's drawings."""
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            from_end = (j - (keys - 1)) - (i - (queries - 1))
            hidden[i, j] = {
                0: not -pre <= j - i <= after,
                2: j > i,
                3: from_end > 0,
                4: not -pre <= from_end <= after,
                5: from_end > 0 and j >= prefix,
                6: from_end > 0 and j >= prefix,
            }[mode]
    return hidden


def varlen(lengths: list[int], seed: int) -> torch.Tensor:
    return torch.randn(sum(lengths), 2, 6, generator=torch.Generator().manual_seed(seed))


def ends(lengths: list[int]) -> list[int]:
    return [sum(lengths[: n + 1]) for n in range(len(lengths))]
