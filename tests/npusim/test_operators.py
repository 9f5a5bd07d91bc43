"""Operators of every kind give on the simulated NPU what they give on the CPU, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "radd number": lambda x, y: 3 - x,
    "divide": lambda x, y: x / (y.abs() + 1),
    "power": lambda x, y: (x.abs() + 1) ** 1.5,
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1, value=0.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "where": lambda x, y: torch.where(x > y, x, 2 * y),
    "maximum": torch.maximum,
    "clamp": lambda x, y: x.clamp(-0.5, 0.5),
    "exp log": lambda x, y: (x.exp() + 1).log(),
    "sqrt rsqrt": lambda x, y: (x.abs() + 1).sqrt() + (y.abs() + 1).rsqrt(),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 7.0),
    "0-dim cpu": lambda x, y: x * torch.tensor(2.5) + y,
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: x.sum(),
    "sum dim": lambda x, y: x.sum(0, keepdim=True),
    "mean var": lambda x, y: x.var(1) + y.mean(1),
    "norm": lambda x, y: torch.linalg.vector_norm(x, dim=1),
    "max": lambda x, y: x.max(1).values,
    "sort": lambda x, y: x.sort(1).values,
    "topk": lambda x, y: x.topk(2, 1).values,
    "cumsum": lambda x, y: x.cumsum(1),
    "logsumexp": lambda x, y: x.logsumexp(0),
    "index_add": lambda x, y: x.index_add(0, _index(x), y),
    "scatter_add": lambda x, y: x.scatter_add(0, _index(x)[:, None].expand(-1, 4), y),
}
SHAPES: dict[str, Callable[..., Any]] = {
    "view": lambda x, y: x.view(2, 2, 4) * 2,
    "transpose": lambda x, y: x.t() @ y,
    "permute": lambda x, y: x.view(2, 2, 4).permute(2, 0, 1).contiguous(),
    "slice": lambda x, y: x[1:, ::2] * 3,
    "select": lambda x, y: x[1] * y[:, 2],
    "index": lambda x, y: x[_index(x)],
    "index cpu": lambda x, y: x[torch.tensor([3, 0, 0])],
    "mask": lambda x, y: x[x.detach() > 0],
    "cat stack": lambda x, y: torch.cat([x, y], 1) + torch.stack([x, y], 1).flatten(1),
    "split": lambda x, y: x.split([1, 3])[1].chunk(2, 1)[0],
    "expand": lambda x, y: x[:1].expand(4, 4) * y,
    "unfold": lambda x, y: x.unfold(1, 2, 1).sum(-1),
    "pad roll flip": lambda x, y: F.pad(x.roll(1, 0).flip(1), (1, 2)),
    "repeat_interleave": lambda x, y: x.repeat_interleave(2, 0),
    "diagonal": lambda x, y: x.diagonal() + torch.diag(y),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "as_strided": lambda x, y: x.as_strided((3, 2), (4, 1), 1) * 2,
    "detach clone": lambda x, y: x.clone() + y.detach(),
}
FOREACH: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: torch._foreach_add([x, y], [y, x], alpha=2),
    "mul number": lambda x, y: torch._foreach_mul([x, y], 0.5),
    "mul numbers": lambda x, y: torch._foreach_mul([x, y], [0.5, 2.0]),
    "mul 0-dim cpu": lambda x, y: torch._foreach_mul([x, y], torch.tensor(0.5)),
    "addcdiv": lambda x, y: torch._foreach_addcdiv([x], [y], [y.abs() + 1], 0.5),
    "norm": lambda x, y: torch._foreach_norm([x, y]),
}
NETWORKS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, y: F.linear(x, y, y[0]),
    "conv1d": lambda x, y: F.conv1d(x.view(2, 2, 4), y.view(2, 2, 4)[..., :3], y[0, :2], padding=1),
    "conv2d groups": lambda x, y: F.conv2d(x.view(1, 4, 2, 2), y.view(4, 1, 2, 2), groups=4),
    "conv_transpose": lambda x, y: F.conv_transpose1d(x.view(2, 2, 4), y.view(2, 2, 4), stride=2),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, y[0], y[1], training=True),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "group_norm": lambda x, y: F.group_norm(x.view(2, 2, 4), 2, y[0, :2]),
    "embedding": lambda x, y: F.embedding(_index(x), x),
    "cross_entropy": lambda x, y: F.cross_entropy(x, _index(x), label_smoothing=0.1),
    "mse": F.mse_loss,
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach().sigmoid()),
    "gelu silu": lambda x, y: F.gelu(x) + F.silu(y),
    "softmax": lambda x, y: x.softmax(1) @ y,
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], x[None]),
    "max_pool": lambda x, y: F.max_pool2d(x.view(1, 1, 4, 4), 2),
    "avg_pool": lambda x, y: F.avg_pool2d(x.view(1, 1, 4, 4), 2),
    "interpolate": lambda x, y: F.interpolate(
        x.view(1, 1, 4, 4), scale_factor=2.0, mode="bilinear"
    ),
    "dropout off": lambda x, y: F.dropout(x, 0.5, training=False) + F.dropout(y, 0.0),
}
LINALG: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, y: x @ y,
    "baddbmm": lambda x, y: torch.baddbmm(x[None], x[None], y[None], beta=0.5),
    "inverse": lambda x, y: torch.linalg.inv(x @ x.t() + 4 * torch.eye(4, device=x.device)),
    "cholesky": lambda x, y: torch.linalg.cholesky(x @ x.t() + 4 * torch.eye(4, device=x.device)),
    "solve": lambda x, y: torch.linalg.solve(x + 4 * torch.eye(4, device=x.device), y),
    "svd": lambda x, y: torch.linalg.svdvals(x),
}
IN_PLACE: dict[str, Callable[..., Any]] = {
    "axpy": lambda x, y: (1 * x).mul_(0.9).add_(y, alpha=0.1),
    "through a view": lambda x, y: _write_rows(1 * x, y),
    "index_put": lambda x, y: (1 * x).index_put_((_index(x),), y, accumulate=True),
    "copy": lambda x, y: (1 * x).copy_(y[0]),
    "masked": lambda x, y: (1 * x).masked_fill_(y > 0, 1.0),
    "foreach": lambda x, y: _foreach_in_place(1 * x, y),
    "zero fill": lambda x, y: (1 * x)[0].zero_() + (1 * y)[1].fill_(2.0),
}


def _index(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([2, 0, 3, 2], device=like.device)


def _write_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1].mul_(3.0)
    x.t()[0] += 1.0
    x[:, 2:] = y[:, :2]
    return x


def _foreach_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_mul_([x[0], x[1]], 2.0)
    torch._foreach_add_([x[2]], [y[2]], alpha=0.5)
    return x


# Where the devices decompose an operator differently on some version of torch: how far results may be apart.
APART = {
    "group_norm": 4e-6,  # its gradient: 1.9e-6 with torch 2.10, equal with 2.13
}
TABLES = (ARITHMETIC, REDUCTIONS, SHAPES, FOREACH, NETWORKS, LINALG, IN_PLACE)


def values_and_gradients(
    function: Callable[..., Any], device: str, dtype: torch.dtype
) -> tuple[Any, list[torch.Tensor | None]]:
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(4, 4, generator=generator, dtype=dtype).to(device) for _ in range(2)]
    for tensor in inputs:
        tensor.requires_grad_()
    result = function(*inputs)
    leaves = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
    sum(t.square().sum() for t in leaves).backward()
    assert all(t.device.type == device for t in torch.utils._pytree.tree_leaves(result))
    grads = [None if t.grad is None else t.grad.cpu() for t in inputs]
    return tree_map(lambda t: t.detach().cpu(), result), grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("name", "function"),
    [pytest.param(*item, id=item[0]) for table in TABLES for item in table.items()],
)
def test_same_as_cpu(name: str, function: Callable[..., Any], dtype: torch.dtype) -> None:
    expected, expected_grads = values_and_gradients(function, "cpu", dtype)
    result, grads = values_and_gradients(function, "npu", dtype)
    # The same kernels on the same memory; only where the two devices decompose differently may a bit differ.
    tolerance = (
        {"rtol": 2e-6, "atol": APART.get(name, 1e-6)}
        if dtype is torch.float32
        else {"rtol": 1e-13, "atol": 1e-13}
    )
    torch.testing.assert_close(result, expected, **tolerance)
    torch.testing.assert_close(grads, expected_grads, **tolerance)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8], ids=str
)
def test_other_types(dtype: torch.dtype) -> None:
    host = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    npu = host.npu()
    for function in (
        lambda x: x == x.flip(0),
        lambda x: x[1:, ::2],
        lambda x: x.sum(),
        lambda x: x.to(torch.float32) * 2,
        lambda x: torch.cat([x, x]),
    ):
        torch.testing.assert_close(function(npu).cpu(), function(host), rtol=0, atol=0)


def test_complex_with_lazy_bits() -> None:
    host = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1)
    npu = host.npu()
    assert npu.conj().cpu().equal(host.conj())
    assert (npu.conj() * 2).cpu().equal(host.conj() * 2)
    assert npu.conj().imag.cpu().equal(host.conj().imag)  # the lazy negative bit
    assert torch.view_as_real(npu).cpu().equal(torch.view_as_real(host))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    host = kind(3, 5, num_layers=2, bidirectional=True)
    npu = kind(3, 5, num_layers=2, bidirectional=True).npu()
    npu.load_state_dict(host.state_dict())
    data = torch.randn(7, 2, 3)
    lengths = torch.tensor([7, 4])
    for pack in (False, True):
        results = []
        for net, x in ((host, data), (npu, data.npu())):
            net.zero_grad()
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths) if pack else x
            out = net(packed)[0]
            out = nn.utils.rnn.pad_packed_sequence(out)[0] if pack else out
            out.square().sum().backward()
            results.append([out.detach().cpu(), *(p.grad.cpu() for p in net.parameters())])
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_transformer_layer() -> None:
    torch.manual_seed(0)
    host = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    npu = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).npu()
    npu.load_state_dict(host.state_dict())
    data = torch.randn(2, 5, 8)
    for mode in (True, False):
        expected = host.train(mode)(data)
        torch.testing.assert_close(
            npu.train(mode)(data.npu()).cpu(), expected, rtol=1e-5, atol=1e-6
        )


def test_out_arguments_are_written_and_resized() -> None:
    host = torch.arange(6.0).reshape(2, 3)
    npu = host.npu()
    right, wrong, empty = (torch.zeros(s, device="npu") for s in ((2, 3), (4,), (0,)))
    torch.mul(npu, 2, out=right)
    torch.mul(npu, 2, out=empty)
    with pytest.warns(UserWarning, match="resized"):
        torch.mul(npu, 2, out=wrong)
    for out in (right, wrong, empty):
        assert out.cpu().equal(host * 2)
