"""The emitted kernels compute what the reference computes: every optimizer, option, type, length, number of tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case, each_setting
from tolerances import TOLERANCES
from training import SHAPES, assert_same, give_grads, make_params, set_grad, tensors_of, train

STEPS = 3
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Short rows of both kinds, one row in one and in several pieces, and what fills no tile.
ROWS = [
    (40, 7),
    (9, 100),
    (3, 130),
    (2, 1500),
    (5, 1),
    (70, 16),
    (17, 128),
    (),
    (0, 4),
    (3, 0),
    (2048,),
]
STORED: dict[str, tuple[torch.dtype, Options]] = {
    "float32": (F32, {}),
    "bfloat16": (BF16, {}),
    "float16, states too": (F16, {"state_dtype": "param"}),
    "float32, bfloat16 states": (F32, {"state_dtype": BF16}),
    "bfloat16, master": (BF16, {"master_weights": True}),
    "float16, master, float16 states": (F16, {"master_weights": True, "state_dtype": "param"}),
    "bfloat16, stochastic": (BF16, {"state_dtype": "param", "rounding": "stochastic"}),
    "float16, stochastic": (F16, {"state_dtype": "param", "rounding": "stochastic"}),
    "bfloat16, master, stochastic states": (
        BF16,
        {"state_dtype": "param", "rounding": "stochastic", "master_weights": True},
    ),
}


def run(
    case: Case, name: str, shapes: Any, dtype: torch.dtype, **options: Any
) -> dict[str, Tensor]:
    """Parameters and states after some steps."""
    grad_dtype = options.pop("grad_dtype", None)
    params = make_params(shapes, dtype)
    optimizer = case.make(params, **options, backend=name)
    train(optimizer, params, STEPS, dtype=grad_dtype)
    return tensors_of(optimizer)


def is_exact(case: Case, options: Options) -> bool:
    """Whether nothing can differ by one bit: no sums, and no roots, which torch's CPU does not round correctly."""
    return case.name == "sgd" and options.get("max_grad_norm") is None


def compare(case: Case, shapes: Any, dtype: torch.dtype, exact: bool, **options: Any) -> None:
    """Triton against the reference."""
    one, two = (run(case, name, shapes, dtype, **options) for name in ("triton", "reference"))
    assert_same(one, two, *((0, 0) if exact else TOLERANCES[dtype]))


@each_setting
def test_options(case: Case, options: Options) -> None:
    compare(case, SHAPES, F32, is_exact(case, options), **options)


@pytest.mark.parametrize("stored", STORED)
@each_case
def test_types(case: Case, stored: str) -> None:
    """With momentum, SGD has a state: its bits are the same, those rounded at random as well."""
    dtype, precision = STORED[stored]
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    compare(case, ROWS, dtype, is_exact(case, options), **options, **precision)


@pytest.mark.parametrize("grad_dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_gradients_of_another_type(name: str, dtype: torch.dtype, grad_dtype: torch.dtype) -> None:
    case = CASES[name]
    compare(case, SHAPES, dtype, is_exact(case, {}), grad_dtype=grad_dtype)


@pytest.mark.parametrize("length", [1, 2, 8, 15, 16, 17, 128, 129, 1024, 8192, 8193, 100_000])
@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "adamp"])
def test_lengths(name: str, length: int) -> None:
    """Rows and tensors of every length; delta makes AdamP project."""
    options = {"weight_decay": 0.1, **({"delta": 100.0} if name == "adamp" else {})}
    case = CASES[name]
    compare(case, [(3, length), (length,)], F32, is_exact(case, options), **options)


def away(shape: tuple[int, ...], offset: int, dtype: torch.dtype) -> Tensor:
    """A tensor whose first element is ``offset`` elements behind an aligned address."""
    numel = torch.Size(shape).numel()
    return torch.randn(numel + offset).to(dtype)[offset:].view(shape)


@pytest.mark.parametrize("offset", [1, 3, 8])
@pytest.mark.parametrize("name", ["sgd", "adamp"])
def test_odd_addresses(name: str, offset: int) -> None:
    runs = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        params = [Parameter(away(shape, offset, BF16)) for shape in [(64, 24), (4096,), (5, 2048)]]
        optimizer = CASES[name].make(params, backend=backend)
        for _ in range(2):
            for param in params:
                set_grad(param, away(tuple(param.shape), offset + 1, BF16))
            optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs, *((0, 0) if name == "sgd" else TOLERANCES[BF16]))


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("name", ["sgd", "adamp"])
def test_numbers_of_tensors(name: str, count: int) -> None:
    exact = name == "sgd"
    compare(CASES[name], [(2 + k % 3, 5) for k in range(count)], F32, exact)


@each_case
def test_twice_the_same_bits(case: Case) -> None:
    runs = [run(case, "triton", ROWS, F32) for _ in range(2)]
    assert_same(*runs, 0, 0)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_a_changed_parameter_wins_over_its_master(name: str, dtype: torch.dtype) -> None:
    runs = []
    for backend in ("triton", "reference"):
        params = make_params([(6, 40)], dtype)
        optimizer = CASES[name].make(params, master_weights=True, backend=backend)
        train(optimizer, params, 2)
        with torch.no_grad():
            params[0][:3] += 0.5
        train(optimizer, params, 2, first=2)
        runs.append(tensors_of(optimizer))
    assert_same(*runs, *((0, 0) if name == "sgd" else TOLERANCES[dtype]))


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_special_numbers(dtype: torch.dtype) -> None:
    """Infinities, NaN and the smallest numbers are loaded, rounded and stored like everywhere."""
    values = [
        float("inf"),
        -float("inf"),
        float("nan"),
        1e-8,
        -1e-8,
        3e38,
        65504.0,
        65520.0,
        0.0,
        -0.0,
    ]
    for rounding in ("nearest", "stochastic"):
        runs = []
        for backend in ("triton", "reference"):
            param = Parameter(torch.tensor(values, dtype=F32).to(dtype))
            stored = {"state_dtype": "param", "rounding": rounding}
            optimizer = CASES["sgd"].make([param], lr=0.1, momentum=0.5, backend=backend, **stored)
            for _ in range(2):
                param.grad = torch.tensor(values[::-1], dtype=F32).to(dtype)
                optimizer.step()
            runs.append(tensors_of(optimizer))
        assert_same(*runs, 0, 0)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_grad_scaler(found: float) -> None:
    """The scale stays a tensor; a step with an overflow changes nothing."""
    runs = []
    for backend in ("triton", "reference"):
        params = make_params(SHAPES)
        optimizer = CASES["lamb"].make(params, backend=backend, max_grad_norm=0.5, maximize=True)
        give_grads(params, 0)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(found)
        optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs, *TOLERANCES[F32])
    started = make_params(SHAPES)
    unchanged = all(torch.equal(runs[0][n], p) for n, p in zip(runs[0], started, strict=False))
    assert unchanged == bool(found)


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
    assert_same(*runs, *TOLERANCES[F32])
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
