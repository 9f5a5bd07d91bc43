"""Tensors of the host and of the simulated NPU may only meet where they may on hardware."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

# `n` is on the NPU, `c` on the CPU; both are (3, 3) and float32.
REFUSED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda n, c: n + c,
    "add reversed": lambda n, c: c + n,
    "in place on npu": lambda n, c: n.add_(c),
    "in place on cpu": lambda n, c: c.add_(n),
    "cpu 0-dim in place": lambda n, c: c[0, 0].add_(n[0, 0]),
    "npu 0-dim": lambda n, c: c * n[0, 0],
    "compare": lambda n, c: n > c,
    "where": lambda n, c: torch.where(n > 0, n, c),
    "where condition": lambda n, c: torch.where(c > 0, n, n),
    "matmul": lambda n, c: n @ c,
    "matmul reversed": lambda n, c: c @ n,
    "addmm": lambda n, c: torch.addmm(c, n, n),
    "linear": lambda n, c: F.linear(n, n, c[0]),
    "conv": lambda n, c: F.conv1d(n[None], c[:, :, None]),
    "conv input": lambda n, c: F.conv1d(c[None], n[:, :, None]),
    "conv bias": lambda n, c: F.conv1d(n[None], n[:, :, None], c[0]),
    "cat": lambda n, c: torch.cat([n, c]),
    "stack": lambda n, c: torch.stack([c, n]),
    "index_select": lambda n, c: n.index_select(0, torch.tensor([0])),
    "index_select 0-dim": lambda n, c: n.index_select(0, torch.tensor(0)),
    "gather": lambda n, c: n.gather(0, torch.zeros(1, 3, dtype=torch.int64)),
    "scatter": lambda n, c: n.scatter(0, torch.zeros(1, 3, dtype=torch.int64), n),
    "index cpu by npu": lambda n, c: c[torch.tensor([0], device="npu")],
    "index_put values": lambda n, c: n.index_put((torch.tensor([0]),), c[0]),
    "masked_fill": lambda n, c: n.masked_fill(c > 0, 1.0),
    "embedding": lambda n, c: F.embedding(torch.tensor([0]), n),
    "cross_entropy": lambda n, c: F.cross_entropy(n, torch.tensor([0, 1, 2])),
    "mse": lambda n, c: F.mse_loss(n, c),
    "layer_norm": lambda n, c: F.layer_norm(n, (3,), c[0], c[1]),
    "batch_norm": lambda n, c: F.batch_norm(n, c[0], c[1], training=True),
    "out": lambda n, c: torch.add(n, n, out=c),
    "out of matmul": lambda n, c: torch.mm(n, n, out=c),
    "out on npu": lambda n, c: torch.add(c, c, out=n),
    "lerp weight": lambda n, c: torch.lerp(n, n, c),
    "addcdiv": lambda n, c: n.addcdiv_(n, c),
    "foreach": lambda n, c: torch._foreach_add([n, n], [n, c]),
    "equal": lambda n, c: torch.equal(n, c),
    "dot": lambda n, c: torch.dot(n[0], c[0]),
    "attention": lambda n, c: F.scaled_dot_product_attention(n[None], c[None], n[None]),
    "set_": lambda n, c: n.set_(c),
    "clamp 0-dim": lambda n, c: n.clamp(min=torch.tensor(0.5)),
    "meta": lambda n, c: n + torch.ones(3, device="meta"),
}
ALLOWED: dict[str, Callable[[torch.Tensor], Any]] = {
    "0-dim cpu": lambda n: n * torch.tensor(2.0),
    "0-dim cpu first": lambda n: torch.tensor(2.0) - n,
    "0-dim cpu in place": lambda n: n.clone().add_(torch.tensor(2.0)),
    "0-dim cpu double": lambda n: n * torch.tensor(2.0, dtype=torch.float64),
    "numbers": lambda n: 2 * n + 1,
    "where 0-dim": lambda n: torch.where(n > 0, n, torch.tensor(0.5)),
    "fill 0-dim": lambda n: n.clone().fill_(torch.tensor(0.5)),
    "masked_fill 0-dim": lambda n: n.masked_fill(n > 0, torch.tensor(0.5)),
    "index by cpu": lambda n: n[torch.tensor([2, 0])],
    "index_put by cpu": lambda n: n.index_put((torch.tensor([2, 0]),), torch.tensor(1.0)),
    "assign a number": lambda n: _assign(n.clone()),
    "foreach 0-dim": lambda n: torch._foreach_mul([n, n], torch.tensor(2.0))[1],
    "copy": lambda n: n.clone().copy_(torch.ones(3)),
}


def _assign(tensor: torch.Tensor) -> torch.Tensor:
    tensor[1] = torch.tensor(3.0)
    tensor[0, 1:] = torch.tensor([5.0, 6.0])  # torch moves the values, on hardware too
    return tensor


@pytest.mark.parametrize("operation", REFUSED.values(), ids=REFUSED)
def test_mixing_raises(operation: Callable[..., Any]) -> None:
    cpu = torch.arange(9.0).reshape(3, 3)
    npu = cpu.npu()
    with pytest.raises((RuntimeError, NotImplementedError), match=r"device|meta"):
        operation(npu, cpu)
    assert cpu.equal(torch.arange(9.0).reshape(3, 3))
    assert npu.cpu().equal(cpu)


@pytest.mark.parametrize("operation", ALLOWED.values(), ids=ALLOWED)
def test_what_hardware_allows(operation: Callable[..., Any]) -> None:
    cpu = torch.arange(9.0).reshape(3, 3) - 4
    result = operation(cpu.npu())
    assert result.device == torch.device("npu:0")
    torch.testing.assert_close(result.cpu(), operation(cpu), rtol=0, atol=0)


def test_the_message_names_devices_and_argument() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"^Expected all tensors to be on the same device, but found at least two devices, "
        r"npu:0 and cpu! \(argument 'mat2' of aten.mm",
    ):
        torch.ones(2, 2, device="npu") @ torch.ones(2, 2)


def test_a_model_that_was_forgotten_on_the_host() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    with pytest.raises(RuntimeError, match="same device"):
        model(torch.ones(1, 1, 4, 4, device="npu"))
