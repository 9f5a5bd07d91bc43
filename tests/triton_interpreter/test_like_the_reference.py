"""The emitted kernels compute what the reference computes: every optimizer, option and type of numbers."""

import pytest
import torch
from comparing import BF16, F16, F32, check, compare, run
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case, each_setting
from training import SHAPES, assert_same, give_grads, make_params, tensors_of, train

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


@each_setting
def test_options(case: Case, options: Options) -> None:
    compare(case, SHAPES, F32, **options)


@pytest.mark.parametrize("stored", STORED)
@each_case
def test_types(case: Case, stored: str) -> None:
    """Those rounded at random have the same bits as well."""
    dtype, precision = STORED[stored]
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    compare(case, ROWS, dtype, **options, **precision)


@pytest.mark.parametrize("grad_dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@each_case
def test_gradients_of_another_type(case: Case, dtype: torch.dtype, grad_dtype: torch.dtype) -> None:
    compare(case, SHAPES, dtype, grad_dtype=grad_dtype, steps=2)


@each_case
def test_twice_the_same_bits(case: Case) -> None:
    runs = [run(case, "triton", ROWS, F32, steps=2) for _ in range(2)]
    assert_same(*runs, 0, 0)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@each_case
def test_a_changed_parameter_wins_over_its_master(case: Case, dtype: torch.dtype) -> None:
    runs = []
    for backend in ("triton", "reference"):
        params = make_params([(6, 40)], dtype)
        optimizer = case.make(params, master_weights=True, backend=backend)
        train(optimizer, params, 2)
        with torch.no_grad():
            params[0][:3] += 0.5
        train(optimizer, params, 2, first=2)
        runs.append(tensors_of(optimizer))
    check(case, *runs, dtype)


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
@each_case
def test_grad_scaler(case: Case, found: float) -> None:
    """The scale stays a tensor; a step with an overflow changes nothing, whatever the gradients are."""
    runs = []
    for backend in ("triton", "reference"):
        params = make_params(SHAPES)
        optimizer = case.make(params, backend=backend, max_grad_norm=0.5, maximize=True)
        for step, overflow in enumerate([0.0, found, 0.0]):
            give_grads(params, step)
            if overflow:
                for param in params:
                    assert param.grad is not None
                    param.grad.fill_(torch.inf)
            before = {name: value.clone() for name, value in tensors_of(optimizer).items()}
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(overflow)
            optimizer.step()
            if overflow:
                assert_same(tensors_of(optimizer), before, 0, 0)
        runs.append(tensors_of(optimizer))
    check(case, *runs, F32)


@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_the_default_type_is_not_used(name: str) -> None:
    """The sums between the passes are float32, whatever type torch gives to new tensors."""
    options = {"weight_decay": 0.1, **({"delta": 100.0} if name == "adamp" else {})}
    shapes = [(3, 130), (2, 9000)]
    expected = run(CASES[name], "reference", shapes, F32, **options)
    default = torch.get_default_dtype()
    torch.set_default_dtype(BF16)
    try:
        found = run(CASES[name], "triton", shapes, F32, **options)
    finally:
        torch.set_default_dtype(default)
    check(CASES[name], found, expected, F32)
