"""Tensors of every length, at any address, in any number and order: the emitted kernels find all of their elements."""

import pytest
import torch
from comparing import BF16, F32, check, compare
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case
from training import give_grads, make_params, set_grad, tensors_of

STORED: dict[str, tuple[torch.dtype, Options]] = {
    "float32": (F32, {}),
    "bfloat16, stochastic": (BF16, {"state_dtype": "param", "rounding": "stochastic"}),
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("length", [1, 2, 8, 15, 16, 17, 128, 129, 1024, 8192, 8193])
@pytest.mark.parametrize("name", ["sgd", "adadelta", "lamb", "adamp"])
def test_lengths(name: str, length: int, stored: str) -> None:
    """Rows and tensors of every length; delta makes AdamP project."""
    dtype, precision = STORED[stored]
    options = {"weight_decay": 0.1, **({"delta": 100.0} if name == "adamp" else {})}
    compare(CASES[name], [(3, length), (length,)], dtype, **options, **precision)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("adamw", "bfloat16, stochastic"),
        ("lamb", "float32"),
        ("lamb", "bfloat16, stochastic"),
        ("adamp", "float32"),
        ("adamp", "bfloat16, stochastic"),
    ],
)
def test_a_hundred_thousand_elements(name: str, stored: str) -> None:
    """Rows in thirteen pieces each, whose sums are collected; two steps, as they take long."""
    dtype, precision = STORED[stored]
    options = {"weight_decay": 0.1, **({"delta": 100.0} if name == "adamp" else {})}
    shapes = [(2, 100_000)] if CASES[name].kind.spec.finish else [(100_000,)]
    compare(CASES[name], shapes, dtype, steps=2, **options, **precision)


def away(shape: tuple[int, ...], offset: int, dtype: torch.dtype) -> Tensor:
    """A tensor whose first element is ``offset`` elements behind an aligned address."""
    numel = torch.Size(shape).numel()
    return torch.randn(numel + offset).to(dtype)[offset:].view(shape)


@pytest.mark.parametrize("offset", [1, 3, 8])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@each_case
def test_odd_addresses(case: Case, offset: int, dtype: torch.dtype) -> None:
    runs = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        params = [Parameter(away(shape, offset, dtype)) for shape in [(64, 24), (2048,), (2, 2048)]]
        optimizer = case.make(params, backend=backend)
        for _ in range(2):
            for param in params:
                set_grad(param, away(tuple(param.shape), offset + 1, dtype))
            optimizer.step()
        runs.append(tensors_of(optimizer))
    check(case, *runs, dtype)


@each_case
def test_one_tensor(case: Case) -> None:
    compare(case, [(3, 5)], F32)


@pytest.mark.parametrize("name", ["sgd", "bert_adam", "lamb", "adamp"])
def test_a_thousand_tensors(name: str) -> None:
    """Two steps: the second reads from the table what the first has written."""
    compare(CASES[name], [(2 + k % 3, 5) for k in range(1000)], F32, steps=2)


def test_dense_in_another_order() -> None:
    """Channels-last parameters are taken where the order of the elements does not matter, and left where it does."""
    weight = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    runs = []
    for backend in ("triton", "reference"):
        param = Parameter(weight.clone(memory_format=torch.preserve_format))
        optimizer = CASES["lamb"].make([param], backend=backend)
        param.grad = weight.flip(0).to(memory_format=torch.channels_last)
        optimizer.step()
        runs.append(tensors_of(optimizer))
    check(CASES["lamb"], *runs, F32)
    param.grad = param.grad.contiguous()
    for options in ({}, {"rounding": "stochastic", "state_dtype": BF16}):
        optimizer = CASES["adamw"].make([param], backend="triton", **options)
        with pytest.raises(RuntimeError, match="different orders"):
            optimizer.step()


def test_what_it_leaves_to_others() -> None:
    double = CASES["adamw"].make(make_params([(3,)], torch.float64), backend="triton")
    give_grads(double.all_params(), 0)
    with pytest.raises(RuntimeError, match=r"not made for torch\.float64"):
        double.step()
    param = Parameter(torch.randn(4, 6)[:, ::2])
    strided = CASES["adamw"].make([param], backend="triton")
    param.grad = torch.ones(4, 3)
    with pytest.raises(RuntimeError, match="strided"):
        strided.step()
