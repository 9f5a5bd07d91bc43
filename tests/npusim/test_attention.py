"""npu_fusion_attention against the plain formula in float64: layouts, types, gradients, refusals."""

from typing import Any

import pytest
import torch
from npusim_attention import CLOSE, TRIANGLE, attention, make, plain, varlen

LAYOUTS = {
    "BNSD": lambda t: t,
    "BSND": lambda t: t.transpose(1, 2),
    "BSH": lambda t: t.transpose(1, 2).flatten(2),
    "SBH": lambda t: t.transpose(1, 2).flatten(2).transpose(0, 1),
}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_forward_and_backward(layout: str, dtype: torch.dtype, kv_heads: int) -> None:
    tensors = [t.to(dtype) for t in make(kv_heads=kv_heads)]
    exact = [t.double().requires_grad_() for t in tensors]
    ours = [t.npu().requires_grad_() for t in tensors]
    arrange = LAYOUTS[layout]
    output = attention(*(arrange(t) for t in ours), 4, input_layout=layout, scale=0.4)
    expected = plain(*exact, 0.4)
    assert output[0].dtype == dtype and output[0].device.type == "npu"
    torch.testing.assert_close(output[0].cpu().double(), arrange(expected), **CLOSE[dtype])
    factor = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    (output[0] * arrange(factor.npu())).sum().backward()
    (expected * factor.double()).sum().backward()
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None and mine.grad.dtype == dtype
        torch.testing.assert_close(mine.grad.cpu().double(), theirs.grad, **CLOSE[dtype])


def test_the_other_results() -> None:
    query, key, value = make()
    result = attention(query.npu(), key.npu(), value.npu(), 4, "BNSD", scale=0.4)
    scores = 0.4 * query.double() @ key.double().transpose(2, 3)
    largest, total = scores.amax(-1), (scores - scores.amax(-1, keepdim=True)).exp().sum(-1)
    for found, expected in ((result[1], largest), (result[2], total)):
        assert found.shape == (2, 4, 5, 8) and found.dtype == torch.float32
        torch.testing.assert_close(found.cpu(), expected.float()[..., None].expand(2, 4, 5, 8))
    assert result[3].numel() == 0 and result[4:] == (0, 0, 0)


def test_position_encoding_comes_before_the_scale() -> None:
    tensors = make()
    for shape in ((2, 4, 5, 7), (1, 4, 5, 7), (2, 4, 1, 7)):
        pse = torch.randn(shape, generator=torch.Generator().manual_seed(5))
        ours = attention(*(t.npu() for t in tensors), 4, "BNSD", pse=pse.npu(), scale=0.4)[0]
        expected = plain(*(t.double() for t in tensors), 0.4, pse=pse.double())
        torch.testing.assert_close(ours.cpu().double(), expected, **CLOSE[torch.float32])


def test_dropout() -> None:
    tensors = make()
    torch.npu.manual_seed(9)
    result = attention(*(t.npu() for t in tensors), 4, "BNSD", scale=0.4, keep_prob=0.7)
    assert result[6] == 2 * 4 * 5 * 7
    torch.manual_seed(9)
    query, key, value = (t.double() for t in tensors)
    shares = (0.4 * query @ key.transpose(2, 3)).softmax(-1).float()
    kept = torch.stack([torch.nn.functional.dropout(batch, 0.3) for batch in shares])
    assert 0.5 < (kept > 0).float().mean() < 0.9
    torch.testing.assert_close(result[0].cpu(), kept @ value.float())


def test_by_the_other_name_and_under_autocast() -> None:
    import torch_npu

    tensors = [t.npu() for t in make()]
    expected = torch_npu.npu_fusion_attention(*tensors, 4, "BNSD")[0]
    assert torch.ops.npu.npu_fusion_attention(*tensors, 4, "BNSD")[0].equal(expected)
    with torch.autocast("npu", dtype=torch.float16):
        assert torch_npu.npu_fusion_attention(*tensors, 4, "BNSD")[0].equal(expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "layout": ({"input_layout": "NBSD"}, "input_layout must be one of BSH, SBH, BSND, BNSD, TND"),
    "heads": ({"head_num": 3}, "head_num is 3, but query has the shape"),
    "dimensions": ({"input_layout": "BSH"}, "query has 4 dimensions, input_layout 'BSH' has 3"),
    "padding_mask": ({"padding_mask": torch.ones(1)}, "padding_mask is not supported"),
    "keep_prob": ({"keep_prob": 0.0}, r"keep_prob must be in \(0, 1\], not 0.0"),
    "inner_precise": ({"inner_precise": 3}, "inner_precise must be 0, 1 or 2, not 3"),
    "softmax_layout": ({"softmax_layout": "TND"}, "softmax_layout must be"),
    "mode": ({"sparse_mode": 9}, "sparse_mode must be 0 to 8, not 9"),
    "varlen mode": ({"sparse_mode": 7}, "sparse_mode 7 needs input_layout 'TND'"),
    "mask type": ({"atten_mask": torch.zeros(5, 7)}, "atten_mask must be bool or uint8"),
    "mask shape": ({"atten_mask": torch.zeros(3, 3).bool()}, "does not cover 2 batches of 5"),
    "mask batches": ({"atten_mask": torch.zeros(3, 1, 5, 7).bool()}, "does not cover 2 batches"),
    "not compressed": (
        {"atten_mask": torch.zeros(5, 7).bool(), "sparse_mode": 3},
        r"needs the compressed atten_mask of 2048 x 2048.*has the shape \(5, 7\)",
    ),
    "other triangle": ({"atten_mask": ~TRIANGLE, "sparse_mode": 2}, "has other values"),
    "prefix": ({"atten_mask": TRIANGLE, "sparse_mode": 6}, "sparse_mode 6 needs prefix"),
    "pse": ({"pse": torch.zeros(5, 7)}, "takes pse with four dimensions"),
    "pse batches": ({"pse": torch.zeros(3, 4, 5, 7)}, "pse is for 3 batches, query has 2"),
    "types": ({"pse": torch.zeros(2, 4, 5, 7).half()}, "must all be float16, bfloat16 or float32"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(options: dict[str, Any], message: str) -> None:
    options = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    arguments = {"head_num": 4, "input_layout": "BNSD", **options}
    with pytest.raises(RuntimeError, match=message):
        attention(*(t.npu() for t in make()), **arguments)


def test_refused_lengths_heads_and_devices() -> None:
    query, key = varlen([5], 1).npu(), varlen([7], 2).npu()
    with pytest.raises(RuntimeError, match="input_layout 'TND' needs actual_seq_qlen"):
        attention(query, key, key, 2, "TND")
    with pytest.raises(
        RuntimeError, match=r"actual_seq_qlen must rise up to at most 5, not \[3, 9\]"
    ):
        attention(query, key, key, 2, "TND", actual_seq_qlen=[3, 9], actual_seq_kvlen=[3, 7])
    with pytest.raises(RuntimeError, match="must be equally long, not 2 and 1"):
        attention(query, key, key, 2, "TND", actual_seq_qlen=[3, 5], actual_seq_kvlen=[7])
    with pytest.raises(RuntimeError, match="the 4 heads of query are no multiple of the 3 of key"):
        attention(*(t.npu() for t in make(kv_heads=3)), 4, "BNSD")
    query, key, value = make()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        attention(query.npu(), key, value.npu(), 4, "BNSD")
