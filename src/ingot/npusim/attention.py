"""npu_fusion_attention: the fused attention of torch_npu, written with torch operators."""

from collections.abc import Sequence

import torch

from ingot.npusim.attention_layouts import (
    bounds,
    check_options,
    check_tensors,
    from_bnsd,
    refuse,
    to_bnsd,
)
from ingot.npusim.attention_masks import Masking
from ingot.npusim.operators import widened
from ingot.npusim.placement import require_npu

_EVERYTHING = 2147483647
_COPIES = 8  # the operator returns each maximum and sum eight times over

_Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _EVERYTHING,
    next_tockens: int = _EVERYTHING,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
) -> _Result:
    """Returns `dropout(softmax(mask(scale * (query @ key^T + pse)))) @ value` and what belongs to it.

    Args:
        query: in the layout that `input_layout` names.
        key: in the same layout; its heads may be fewer, if they divide the query's.
        value: as key.
        head_num: heads of the query.
        input_layout: BSH, SBH, BSND, BNSD, or TND with the lengths in `actual_seq_*len`.
        pse: a position encoding `[B or 1, N, Sq or 1, Skv]`; not with TND.
        padding_mask: None: the operator does not support it.
        atten_mask: True where a score is left out: `[B, N or 1, Sq, Skv]`, `[1, 1, Sq, Skv]`,
            `[Sq, Skv]`, or what `sparse_mode` asks for.
        scale: the factor of the scores.
        keep_prob: the share of the probabilities that dropout keeps, drawn from the CPU's generator.
        pre_tockens: see Masking.
        next_tockens: see Masking.
        inner_precise: 0, 1 or 2: how exactly an NPU computes; changes nothing here.
        prefix: see Masking.
        actual_seq_qlen: where each sequence of queries ends in TND, added up.
        actual_seq_kvlen: the same for the keys.
        sparse_mode: see Masking.
        gen_mask_parallel: how an NPU draws dropout; changes nothing here.
        sync: how an NPU draws dropout; changes nothing here.
        softmax_layout: "" or, with TND, "TND": how an NPU lays out what only its backward reads.

    Returns:
        The attention in the layout of the query; the maximum and the sum of each softmax, eight
        times over; an empty tensor; seed and offset of the dropout, both 0 here; its numbers.
    """
    require_npu(
        "npu_fusion_attention", query=query, key=key, value=value, pse=pse, atten_mask=atten_mask
    )
    check_options(input_layout, padding_mask, keep_prob, inner_precise, softmax_layout)
    check_tensors(query, key, value, pse, head_num, input_layout)
    masking = Masking(atten_mask, sparse_mode, pre_tockens, next_tockens, prefix)
    masking.check(varlen=input_layout == "TND")
    one = _Attention(scale, 1.0 - keep_prob, masking)
    if input_layout == "TND":
        return _varlen(one, query, key, value, actual_seq_qlen, actual_seq_kvlen)
    # In SBH and BSH, the heads of key and value are as wide as the query's and may be fewer.
    width = query.shape[2] // head_num
    queries, keys, values = (to_bnsd(t, input_layout, width) for t in (query, key, value))
    if pse is not None and len(pse) not in (1, len(queries)):
        refuse(f"pse is for {len(pse)} batches, query has {len(queries)}")
    encodings = [None if pse is None else pse[b % len(pse)] for b in range(len(queries))]
    parts = [
        one.run(*tensors, batch, len(queries))
        for batch, tensors in enumerate(zip(queries, keys, values, encodings, strict=True))
    ]
    outputs, largest, sums = (torch.stack(list(column)) for column in zip(*parts, strict=True))
    drawn = sums.numel() * keys.shape[2] if one.drop else 0
    result = from_bnsd(outputs, input_layout).to(query.dtype)
    return result, _copied(largest), _copied(sums), query.new_empty(0), 0, 0, drawn


class _Attention:
    """The formula for one batch, `[heads, tokens, width]`."""

    def __init__(self, scale: float, drop: float, masking: Masking) -> None:
        self.scale, self.drop, self.masking = scale, drop, masking

    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pse: torch.Tensor | None,
        batch: int,
        batches: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the attention and the maximum and sum of each softmax."""
        query, key, value = widened(query), widened(key), widened(value)
        # Grouped queries: each head of the keys serves several of the queries.
        groups = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        scores = query @ key.transpose(1, 2)
        if pse is not None:
            scores = scores + widened(pse)
        scores = scores * self.scale
        hidden = self.masking.hidden(query.shape[1], key.shape[1], batch, batches, query.device)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        largest = (
            scores.detach().amax(-1) if scores.shape[-1] else scores.new_zeros(scores.shape[:2])
        )
        # A query that sees no key gets zeros.
        weights = (scores - largest.nan_to_num(neginf=0.0)[..., None]).exp()
        sums = weights.sum(-1)
        shares = weights / sums.where(sums > 0, 1.0)[..., None]
        if self.drop:
            shares = torch.nn.functional.dropout(shares, self.drop)
        return shares @ value, largest, sums.detach()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float()[..., None].repeat_interleave(_COPIES, -1)


def _varlen(
    one: _Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: Sequence[int] | None,
    key_ends: Sequence[int] | None,
) -> _Result:
    of_queries = bounds(query_ends, "actual_seq_qlen", len(query))
    of_keys = bounds(key_ends, "actual_seq_kvlen", len(key))
    if len(of_queries) != len(of_keys):
        refuse(
            "actual_seq_qlen and actual_seq_kvlen must be equally long, "
            f"not {len(of_queries)} and {len(of_keys)}"
        )
    outputs, largest, sums, drawn = [], [], [], 0
    for batch, ((start, end), (first, last)) in enumerate(zip(of_queries, of_keys, strict=True)):
        q, k, v = (
            t.transpose(0, 1) for t in (query[start:end], key[first:last], value[first:last])
        )
        out, top, total = one.run(q, k, v, None, batch, len(of_queries))
        outputs.append(out.transpose(0, 1))
        largest.append(top.t())
        sums.append(total.t())
        drawn += total.numel() * (last - first) if one.drop else 0
    # Tokens of sequences that are left out get zeros.
    rest = len(query) - of_queries[-1][1]
    outputs.append(outputs[0].new_zeros(rest, *outputs[0].shape[1:]))
    for statistics in (largest, sums):
        statistics.append(statistics[0].new_zeros(rest, query.shape[1]))
    result = torch.cat(outputs).to(query.dtype)
    return (
        result,
        _copied(torch.cat(largest)),
        _copied(torch.cat(sums)),
        query.new_empty(0),
        0,
        0,
        drawn,
    )
