"""npu_fusion_attention leaves out what its masks, modes and lengths say, against the plain formula."""

from typing import Any

import pytest
import torch
from npusim_attention import CLOSE, TRIANGLE, attention, ends, hidden_by, make, plain, varlen


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize("mode", [0, 2, 3, 4, 5, 6])
def test_sparse_modes(mode: int, queries: int, keys: int) -> None:
    tensors = make(queries=queries, keys=keys)
    prefix = [3, 4]
    hidden = torch.stack([hidden_by(mode, queries, keys, 2, 1, n) for n in prefix])[:, None]
    below = torch.arange(2048).expand(1024, 2048) >= 1024
    given = {0: hidden[0, 0], 5: hidden, 6: torch.cat([TRIANGLE, below])}.get(mode, TRIANGLE)
    ours = attention(
        *(t.npu() for t in tensors),
        4,
        "BNSD",
        atten_mask=given.npu(),
        scale=0.4,
        sparse_mode=mode,
        pre_tockens=2,
        next_tockens=1,
        prefix=prefix,
    )[0]
    expected = plain(*(t.double() for t in tensors), 0.4, hidden)
    torch.testing.assert_close(ours.cpu().double(), expected, **CLOSE[torch.float32])
    assert ours.cpu().isfinite().all()


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (2, 1, 5, 7), (1, 1, 5, 7), (5, 7)])
@pytest.mark.parametrize("mode", [0, 1])
def test_a_whole_mask(mode: int, shape: tuple[int, ...]) -> None:
    tensors = make()
    hidden = torch.rand(shape, generator=torch.Generator().manual_seed(6)) < 0.5
    hidden[..., 0] = False
    for given in (hidden, hidden.to(torch.uint8)):
        ours = attention(
            *(t.npu() for t in tensors),
            4,
            "BNSD",
            atten_mask=given.npu(),
            scale=0.4,
            sparse_mode=mode,
        )[0]
        expected = plain(*(t.double() for t in tensors), 0.4, hidden)
        torch.testing.assert_close(ours.cpu().double(), expected, **CLOSE[torch.float32])


def test_a_query_that_sees_nothing_has_no_gradient() -> None:
    query, key, value = (t.npu().requires_grad_() for t in make())
    hidden = torch.zeros(5, 7, dtype=torch.bool)
    hidden[2] = True
    out = attention(query, key, value, 4, "BNSD", atten_mask=hidden.npu())[0]
    out.sum().backward()
    assert out[:, :, 2].abs().max() == 0 and query.grad[:, :, 2].abs().max() == 0
    assert all(t.grad.isfinite().all() for t in (query, key, value))


def test_without_a_mask_the_mode_has_no_effect() -> None:
    tensors = [t.npu() for t in make()]
    whole = attention(*tensors, 4, "BNSD")[0]
    for mode in (1, 2, 3, 4):
        again = attention(*tensors, 4, "BNSD", sparse_mode=mode, next_tockens=0)
        assert again[0].equal(whole)


@pytest.mark.parametrize("mode", [0, 3])
def test_sequences_in_a_row(mode: int) -> None:
    of_queries, of_keys = [2, 3, 0, 1], [4, 3, 2, 5]
    query, key, value = varlen(of_queries, 1), varlen(of_keys, 2), varlen(of_keys, 3)
    ours = [t.npu().requires_grad_() for t in (query, key, value)]
    exact = [t.double().requires_grad_() for t in (query, key, value)]
    # The last of the queries is left out: its place gets zeros.
    result = attention(
        *ours,
        2,
        "TND",
        scale=0.4,
        atten_mask=TRIANGLE.npu() if mode else None,
        actual_seq_qlen=[*ends(of_queries)[:3], 0],
        actual_seq_kvlen=[*ends(of_keys)[:3], 0],
        sparse_mode=mode,
    )
    expected = []
    for q, k, v in zip(
        *(t.split(n) for t, n in zip(exact, (of_queries, of_keys, of_keys), strict=True)),
        strict=True,
    ):
        hidden = hidden_by(3, len(q), len(k), 0, 0, 0) if mode else None
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        expected.append(plain(q, k, v, 0.4, hidden)[0].transpose(0, 1))
    expected[-1] = torch.zeros_like(expected[-1])
    torch.testing.assert_close(
        result[0].cpu().double(), torch.cat(expected), **CLOSE[torch.float32]
    )
    assert result[1].shape == result[2].shape == (6, 2, 8)
    result[0].square().sum().backward()
    torch.cat(expected).square().sum().backward()
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.grad.cpu().double(), theirs.grad, rtol=1e-4, atol=1e-5)


# The document's examples: the queries of one call on two devices, the keys on both.
SPLITS = {
    7: {"whole": (3, [3, 4], [3, 6]), "band": (7, [3, 2], [3, 6], 6, -2), "rows": slice(0, 5)},
    8: {"whole": (2, [5, 5], [4, 5]), "band": (8, [3, 5], [4, 5], 4, 1), "rows": slice(2, 10)},
}


@pytest.mark.parametrize("mode", SPLITS)
def test_queries_split_over_devices(mode: int) -> None:
    whole_mode, of_queries, of_keys = SPLITS[mode]["whole"]
    band_mode, split_queries, split_keys, pre, after = SPLITS[mode]["band"]
    rows = SPLITS[mode]["rows"]
    query, key, value = (
        varlen(n, s).npu() for n, s in ((of_queries, 1), (of_keys, 2), (of_keys, 3))
    )
    common: Any = {"atten_mask": TRIANGLE.npu(), "scale": 0.4}
    whole = attention(
        query,
        key,
        value,
        2,
        "TND",
        sparse_mode=whole_mode,
        **common,
        actual_seq_qlen=ends(of_queries),
        actual_seq_kvlen=ends(of_keys),
    )[0]
    split = attention(
        query[rows],
        key,
        value,
        2,
        "TND",
        sparse_mode=band_mode,
        **common,
        actual_seq_qlen=ends(split_queries),
        actual_seq_kvlen=ends(split_keys),
        pre_tockens=pre,
        next_tockens=after,
    )[0]
    torch.testing.assert_close(split.cpu(), whole[rows].cpu())
