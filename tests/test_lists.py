"""The lists backend: the programs it emits, and what it leaves alone."""

import copy
import io
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import Parameter

from cases import CASES, Case, Options, each_case, each_setting
from ingot.backends.emit import Purpose, facts, program
from ingot.backends.lists import complements
from ingot.backends.pieces import Piece
from ingot.declare.spec import Spec, State
from ingot.declare.words import absolute, maximum, sqrt, where
from ingot.optimizer import FusedOptimizer
from training import SHAPES, assert_same, give_grads, make_params, tensors_of, train

PRECISION = ("state_dtype", "master_weights", "rounding", "rounding_seed")


def text_of(kind: type[FusedOptimizer], exact: bool = False, **options: Any) -> str:
    optimizer = kind([torch.ones(2, requires_grad=True)], **options)
    group = optimizer.param_groups[0]
    variant = kind.spec.variant(group)
    numbers = kind.spec.numbers(group, 2, torch.device("cpu"), torch.float32)
    known = facts(numbers, complements(variant))
    results = (*variant.states, "update" if variant.two_pass else "param")
    return program(variant, Purpose(results, True, exact, False, known)).text


def test_adamw_is_seven_operators() -> None:
    assert text_of(CASES["adamw"].kind).splitlines()[3:] == [
        "def adamw(param, grad, exp_avg, exp_avg_sq, s):",
        "    torch._foreach_lerp_(exp_avg, grad, s.comp1)",
        "    torch._foreach_mul_(exp_avg_sq, s.beta2)",
        "    torch._foreach_addcmul_(exp_avg_sq, grad, grad, value=s.comp2)",
        "    t0 = torch._foreach_sqrt(exp_avg_sq)",
        "    torch._foreach_add_(t0, (s.eps / s.rbias2))",
        "    torch._foreach_mul_(param, s.keep)",
        "    torch._foreach_addcdiv_(param, exp_avg, t0, value=-(s.rate / s.rbias2))",
        "    del t0",
    ]


def test_factors_of_one_are_left_out() -> None:
    assert "s.keep" not in text_of(CASES["adamw"].kind, weight_decay=0.0)
    assert "s.keep" in text_of(CASES["adamw"].kind, weight_decay=0.1)


def test_terms_of_zero_are_left_out() -> None:
    assert "s.eps_inside" not in text_of(CASES["rmsprop"].kind)
    assert "s.eps_inside" in text_of(CASES["rmsprop_tf"].kind)


def test_an_exact_program_fuses_no_operations() -> None:
    text = text_of(CASES["adamw"].kind, exact=True)
    assert not any(word in text for word in ("lerp", "addc", "alpha"))


@each_setting
def test_no_program_moves_a_result(case: Case, options: Options) -> None:
    """Every new state and parameter of the package is computed in its place."""
    own = {name: value for name, value in options.items() if name not in PRECISION}
    assert "_foreach_copy_" not in text_of(case.kind, **{"lr": 1e-3, **own})


class Numbers(NamedTuple):
    keep: float
    rate: float
    half: float


def advance(param: Any, grad: Any, one: Any, two: Any, s: Any) -> tuple[Any, ...]:
    """The states trade places, and the second is a choice between two."""
    return two, where(absolute(grad) > s.half, one, maximum(grad, one))


def direction(param: Any, grad: Any, one: Any, two: Any, s: Any) -> Any:
    return (s.half - one) / sqrt(s.half / (absolute(two) + 1.0)) - (-grad)


class Trader(FusedOptimizer):
    spec = Spec(
        "trader",
        {"one": State(start=1.0), "two": State()},
        lambda group, step: Numbers(1.0, group["lr"], 0.5),
        advance,
        direction,
    )
    rules: dict[str, Any] = {}

    def __init__(self, params: Any, lr: float = 0.1, **common: Any) -> None:
        super().__init__(params, {"lr": lr}, **common)


@pytest.mark.parametrize(
    "options", [{}, {"state_dtype": torch.bfloat16}, {"rounding": "stochastic"}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_math_that_no_optimizer_of_the_package_has(dtype: torch.dtype, options: Any) -> None:
    if dtype is torch.float64 and "state_dtype" in options:
        return
    runs = []
    for backend in ("lists", "reference"):
        params = make_params(SHAPES, dtype)
        optimizer = Trader(params, **options, backend=backend)
        train(optimizer, params, 4)
        runs.append(tensors_of(optimizer))
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-6}[dtype]
    assert_same(*runs, rtol=tolerance, atol=tolerance)


def test_a_body_that_is_no_declared_math_goes_to_the_reference() -> None:
    class Strange(Trader):
        spec = Spec(
            "strange",
            {"one": State(), "two": State()},
            Trader.spec.scalars,
            lambda param, grad, one, two, s: (torch.tanh(one), two),
            direction,
        )

    params = make_params([(3,)])
    give_grads(params, 0)
    optimizer = Strange(params)
    assert optimizer._plan()[0].backend.name == "reference"
    with pytest.raises(RuntimeError, match=r"lists.*strange is not declared math: tanh"):
        Strange(params, backend="lists").step()


@each_case
def test_gradients_stay_as_they_are(case: Case) -> None:
    params = make_params(SHAPES)
    optimizer = case.make(params, backend="lists", max_grad_norm=0.1, maximize=True)
    for step in range(2):
        give_grads(params, step)
        before = [param.grad.clone() for param in params]
        optimizer.step()
        for param, grad in zip(params, before, strict=True):
            assert torch.equal(param.grad, grad)


@each_case
def test_the_same_bits_twice_and_no_shared_memory(case: Case) -> None:
    """A copy of the optimizer goes on alike, and one saved state is no larger than itself."""
    params = make_params([(64, 64)] * 20)
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    optimizer = case.make(params, backend="lists", **options)
    train(optimizer, params, 2)
    twin = copy.deepcopy(optimizer)
    for each in (optimizer, twin):
        train(each, each.param_groups[0]["params"], 2)
    assert_same(tensors_of(optimizer), tensors_of(twin))
    tensors = (v for v in optimizer.state[params[0]].values() if isinstance(v, torch.Tensor))
    state = next(tensor for tensor in tensors if tensor.ndim)
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < 2 * state.numel() * state.element_size()


@each_case
def test_parameters_that_change_between_steps(case: Case) -> None:
    """Moved, laid out anew, without elements, without a gradient, resized with a fresh state."""
    runs = []
    for backend in ("lists", "reference"):
        params = make_params([(4, 6, 5, 3), (3, 5), (0, 4), (), (7,)])
        optimizer = case.make(params, backend=backend)
        train(optimizer, params, 2)
        params[0].data = params[0].data.to(memory_format=torch.channels_last)
        params[1].data = params[1].data.clone().t().contiguous().t()
        train(optimizer, params, 1)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.state.pop(params[4], None)
        params[4].data = torch.linspace(-1, 1, 9)
        give_grads(params, 5)
        params[3].grad = None
        optimizer.step()
        runs.append({f"{i}": p.detach() for i, p in enumerate(params)})
    assert_same(*runs, rtol=1e-6, atol=1e-6)


def test_a_scale_on_the_device_is_not_waited_for() -> None:
    params = make_params(SHAPES)
    optimizer = CASES["lamb"].make(params, backend="lists")
    give_grads(params, 0)
    (bucket,) = optimizer._plan()
    bucket.grad_scale = torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        bucket.backend.run(bucket)
    other = make_params(SHAPES)
    twin = CASES["lamb"].make(other, backend="lists")
    give_grads(other, 0)
    for param in other:
        param.grad.mul_(0.5)
    twin.step()
    for one, two in zip(params, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
        assert one.dtype is torch.float32


def test_pieces_are_views_in_row_major_order() -> None:
    tensors = [torch.randn(3, 4).t(), torch.randn(()), torch.randn(5)]
    piece = Piece.copy(tensors, torch.float64)
    flat = piece.flat(torch.float64)
    assert torch.equal(flat, torch.cat([t.reshape(-1) for t in tensors]).double())
    flat.zero_()
    assert all(not each.any() for each in piece.tensors)
    alone = Parameter(torch.ones(4)).detach()
    assert Piece([alone]).flat(torch.float32).data_ptr() == alone.data_ptr()
