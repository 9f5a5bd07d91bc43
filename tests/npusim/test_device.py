"""What surrounds operators: moving, views, random numbers, autocast, threads, memory, refusals."""

import weakref
from typing import Any

import numpy
import pytest
import torch
from npusim_nets import is_on_npu, make_net
from torch import nn

from ingot.npusim.bridge import to_npu


@pytest.mark.parametrize("how", ["npu", "npu:0", 0, "device", "method", "method 0"])
def test_ways_to_move(how: Any) -> None:
    host = torch.arange(6.0).reshape(2, 3).t()
    moves = {
        "method": host.npu,
        "method 0": lambda: host.npu(0),
        "device": lambda: host.to(torch.device("npu")),
    }
    npu = moves[how]() if how in moves else host.to(how)
    assert is_on_npu(npu) and npu.is_npu and not host.is_npu
    assert npu.stride() == host.stride()
    host[0, 0] = 7.0  # a copy, not an alias
    assert npu[0, 0].item() == 0.0
    assert npu.npu() is npu
    assert npu.cpu().equal(torch.arange(6.0).reshape(2, 3).t())


def test_factories_and_the_default_device() -> None:
    for made in (
        torch.zeros(2, device="npu"),
        torch.tensor([0.0, 0.0], device="npu:0"),
        torch.zeros_like(torch.ones(2), device=torch.device("npu")),
        torch.ones(2, device="npu").new_zeros(2),
        torch.full((2,), 0.0, device="npu"),
    ):
        assert is_on_npu(made) and made.tolist() == [0.0, 0.0]
    with torch.device("npu"):
        assert is_on_npu(torch.arange(3))
        assert is_on_npu(nn.Linear(2, 2).weight)
    assert torch.arange(3).device.type == "cpu"


def test_module_keeps_its_results() -> None:
    host, npu = make_net(), make_net().to("npu:0")
    assert is_on_npu(*npu.parameters(), *npu.buffers())
    data = torch.randn(5, 1, 4, 4)
    for net, x in ((host, data), (npu, data.npu())):
        net(x).square().mean().backward()
    for ours, expected in zip(npu.parameters(), host.parameters(), strict=True):
        assert ours.grad is not None and is_on_npu(ours.grad)
        torch.testing.assert_close(ours.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(npu.cpu().state_dict(), host.state_dict())


def test_views_share_memory() -> None:
    npu = torch.zeros(3, 4, device="npu")
    row, column = npu[1], npu.t()[2]
    row.add_(1)
    column.mul_(2)
    assert npu.tolist() == [[0, 0, 0, 0], [1, 1, 2, 1], [0, 0, 0, 0]]
    assert row._base is npu
    assert npu.view(-1)[4:].untyped_storage().data_ptr() == npu.untyped_storage().data_ptr()
    assert npu.detach().data_ptr() == npu.data_ptr()


def test_autograd_notices_changes_in_place() -> None:
    weight = torch.ones(3, device="npu", requires_grad=True)
    hidden = weight * 2
    loss = hidden.square().sum()
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_resize_set_and_data() -> None:
    npu = torch.arange(4.0, device="npu")
    assert npu.resize_(6)[:4].tolist() == [0, 1, 2, 3]
    npu.set_(torch.ones(2, 2, device="npu"))
    assert npu.tolist() == [[1, 1], [1, 1]]
    param = nn.Parameter(torch.zeros(2, device="npu"))
    param.data = torch.ones(3, device="npu")
    assert param.tolist() == [1, 1, 1]
    assert torch.ones(2, device="npu").set_().shape == (0,)


def test_random_numbers_are_those_of_the_cpu() -> None:
    torch.manual_seed(5)
    expected = [torch.randn(3), torch.rand(2), torch.randperm(5), torch.empty(4).normal_(1, 2)]
    for seed in (torch.manual_seed, torch.npu.manual_seed, torch.npu.manual_seed_all):
        seed(5)
        made = [
            torch.randn(3, device="npu"),
            torch.rand(2, device="npu"),
            torch.randperm(5, device="npu"),
            torch.empty(4, device="npu").normal_(1, 2),
        ]
        assert all(is_on_npu(m) and m.cpu().equal(e) for m, e in zip(made, expected, strict=True))
    state = torch.npu.get_rng_state()
    first = nn.functional.dropout(torch.ones(50, device="npu"), 0.5)
    torch.npu.set_rng_state(state)
    assert nn.functional.dropout(torch.ones(50, device="npu"), 0.5).equal(first)
    with torch.random.fork_rng(device_type="npu"):
        torch.randn(1, device="npu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_types(dtype: torch.dtype) -> None:
    x = torch.randn(4, 4, device="npu", requires_grad=True)
    half = x.detach().to(dtype)
    net = make_net().npu()
    with torch.autocast("npu", dtype=dtype):
        assert (x @ x).dtype == dtype
        assert nn.functional.linear(x, x).dtype == dtype
        assert net(torch.randn(2, 1, 4, 4, device="npu")).dtype == dtype
        assert half.exp().dtype == torch.float32
        assert half.softmax(0).dtype == torch.float32
        assert torch.nn.functional.mse_loss(half, half).dtype == torch.float32
        assert torch.cat([x, half]).dtype == torch.float32
        assert torch.cat([half, half]).dtype == dtype
        assert (half + half).dtype == dtype
        assert (x.double() @ x.double()).dtype == torch.float64
        with torch.autocast("npu", enabled=False):
            assert (x @ x).dtype == torch.float32
        loss = (x @ x).sum()
    assert (x @ x).dtype == torch.float32
    loss.backward()
    assert x.grad is not None and x.grad.dtype == torch.float32
    expected = x.detach().cpu().to(dtype)
    ones = torch.ones(4, 4, dtype=dtype)
    torch.testing.assert_close(
        x.grad.cpu(), (ones @ expected.t()).float() + (expected.t() @ ones).float()
    )
    with torch.autocast("cpu"):  # of another device: nothing happens
        assert (x @ x).dtype == torch.float32


def test_torch_optimizers_and_scaler() -> None:
    results = []
    for device in ("cpu", "npu"):
        net = make_net().to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device, init_scale=64.0)
        data = torch.linspace(-1, 1, 64, device=device).reshape(4, 1, 4, 4)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(net(data).square().mean()).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        results.append([norm.cpu(), *(p.detach().cpu() for p in net.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_backward_from_several_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> torch.Tensor:
        x = torch.full((4,), float(seed), device="npu", requires_grad=True)
        for _ in range(10):
            (x * x).sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))
    assert [r.tolist() for r in results] == [[20.0 * seed] * 4 for seed in range(8)]


def test_memory_is_given_back() -> None:
    array = numpy.zeros(8, dtype=numpy.float32)
    watched = weakref.ref(array)
    npu = to_npu(torch.from_numpy(array))
    npu[0] = 5.0
    assert array[0] == 5.0  # the same memory
    alias = npu[2:]
    del array, npu
    assert alias.add_(1).tolist() == [1.0] * 6 and watched() is not None  # the view keeps it
    del alias
    assert watched() is None


REFUSALS: dict[str, Any] = {
    "a second device": (lambda: torch.ones(1, device="npu:1"), RuntimeError, "has 1 device"),
    "to a second device": (lambda: torch.ones(1).to("npu:1"), RuntimeError, "has 1 device"),
    "numpy": (lambda: torch.ones(1, device="npu").numpy(), TypeError, "Use Tensor.cpu()"),
    "sparse": (
        lambda: torch.eye(2, device="npu").to_sparse(),
        NotImplementedError,
        "no torch.sparse",
    ),
    "generator": (lambda: torch.Generator("npu"), NotImplementedError, "PrivateUse1"),
    "grow storage": (
        lambda: torch.ones(1, device="npu").untyped_storage().resize_(64),
        NotImplementedError,
        "cannot let a storage grow",
    ),
    "change device": (
        lambda: setattr(torch.ones(1), "data", torch.ones(1, device="npu")),
        RuntimeError,
        "incompatible tensor type",
    ),
}


@pytest.mark.parametrize(("operation", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refused_with_an_error(operation: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        operation()
