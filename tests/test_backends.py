"""Every backend computes what the reference backend computes: parameters and every state, over many steps."""

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import BACKENDS, CASES, Case, Options, each_case, each_fused_backend, each_setting
from tolerances import TOLERANCES, tolerance
from training import SHAPES, assert_same, give_grads, make_params, set_grad, tensors_of, train

STEPS = 20
DTYPES = list(TOLERANCES)[:4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_setting
def test_like_the_reference(case: Case, options: Options, dtype: torch.dtype) -> None:
    runs = {}
    for name in BACKENDS:
        params = make_params(SHAPES, dtype)
        optimizer = case.make(params, **options, backend=name)
        train(optimizer, params, STEPS)
        runs[name] = tensors_of(optimizer)
    started = {f"param {i} {tuple(p.shape)}": p for i, p in enumerate(make_params(SHAPES, dtype))}
    reference = runs.pop("reference")
    # Adadelta's first steps are small: in bfloat16 they move the smallest numbers only.
    least = 1 if case.name == "adadelta" else 5
    assert sum(not torch.equal(p, reference[name]) for name, p in started.items()) >= least
    assert runs
    for name, run in runs.items():
        assert_same(run, reference, *tolerance(case, options, dtype, name))


@each_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states_are_at_least_float32(case: Case, dtype: torch.dtype) -> None:
    params = make_params([(3, 2), (5,)], dtype)
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    optimizer = case.make(params, **options)
    train(optimizer, params, 2)
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    for param in params:
        tensors = [v for v in optimizer.state[param].values() if isinstance(v, Tensor)]
        assert tensors and {t.dtype for t in tensors} == {expected}


@each_fused_backend
@each_case
@pytest.mark.parametrize(
    ("param_dtype", "grad_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
    ],
    ids=str,
)
def test_gradients_of_another_type(
    case: Case, param_dtype: torch.dtype, grad_dtype: torch.dtype, backend: str
) -> None:
    runs = []
    for name in ("reference", backend):
        params = make_params(SHAPES, param_dtype)
        optimizer = case.make(params, backend=name)
        train(optimizer, params, 5, dtype=grad_dtype)
        runs.append(tensors_of(optimizer))
    assert_same(runs[1], runs[0], *TOLERANCES[param_dtype])


def test_the_reference_reads_gradients_of_another_type() -> None:
    """A bfloat16 gradient is the float32 gradient of the same values."""
    one, two = make_params(SHAPES), make_params(SHAPES)
    optimizers = [CASES["lamb"].make(params, backend="reference") for params in (one, two)]
    for step in range(3):
        give_grads(one, step, torch.bfloat16)
        for a, b in zip(one, two, strict=True):
            assert a.grad is not None and a.grad.dtype is torch.bfloat16
            set_grad(b, a.grad.float())
        for optimizer in optimizers:
            optimizer.step()
    assert_same(tensors_of(optimizers[0]), tensors_of(optimizers[1]))


def channels_last(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


def permuted(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*reversed(shape)).permute(*reversed(range(len(shape))))


def sliced(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]


def expanded(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(()).expand(shape)


def contiguous(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(*shape)


LAYOUTS = [
    pytest.param(param, grad, id=f"{param.__name__}-{grad.__name__}")
    for param in (contiguous, channels_last, permuted, sliced)
    for grad in (contiguous, channels_last, permuted, sliced, expanded)
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("param_layout", "grad_layout"), LAYOUTS)
@each_case
def test_layouts(case: Case, param_layout, grad_layout, backend: str) -> None:
    """Whatever the strides of parameter and gradient: the numbers of the contiguous run, and those alone."""
    shape = (4, 6, 5, 3)
    value = param_layout(shape)
    # The memory between the elements of a sliced tensor must stay as it is.
    base = value._base if value._base is not None else value
    odd, plain = Parameter(value), Parameter(value.clone(memory_format=torch.contiguous_format))
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    optimizers = [
        case.make([odd], **options, backend=backend),
        case.make([plain], **options, backend="reference"),
    ]
    strides, untouched = odd.stride(), base.clone()
    for _ in range(3):
        grad = grad_layout(shape)
        set_grad(odd, grad)
        set_grad(plain, grad.contiguous())
        before = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(grad, before), "the gradient itself was changed"
    assert odd.stride() == strides
    if param_layout is sliced:
        assert torch.equal(base[..., 1::2], untouched[..., 1::2])
        assert odd.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    first, second = map(tensors_of, optimizers)
    assert_same(first, second, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@each_case
def test_complex_parameters_are_pairs_of_reals(
    case: Case, dtype: torch.dtype, backend: str
) -> None:
    """As torch.optim does it; rows of AdamP are rows of complex numbers."""
    real = torch.float32 if dtype is torch.complex64 else torch.float64
    shapes = [(5,), (4, 3)] if case.name != "adamp" else [(4, 3), (2, 3, 2)]
    pairs = [Parameter(p.detach()) for p in make_params([(*shape, 2) for shape in shapes], real)]
    params = [Parameter(torch.view_as_complex(pair.detach().clone())) for pair in pairs]
    options = {"momentum": 0.9} if case.name == "sgd" else {"weight_decay": 0.1}
    one = case.make(params, **options, backend=backend)
    two = case.make(pairs, **options, backend="reference")
    for step in range(5):
        give_grads(pairs, step)
        for param, pair in zip(params, pairs, strict=True):
            assert pair.grad is not None
            param.grad = torch.view_as_complex(pair.grad)
        one.step()
        two.step()
    for param, pair in zip(params, pairs, strict=True):
        torch.testing.assert_close(
            torch.view_as_real(param.detach()), pair.detach(), rtol=1e-6, atol=1e-7
        )
        for name, state in one.state[param].items():
            if name != "step":
                assert state.dtype is dtype
                expected = two.state[pair][name]
                torch.testing.assert_close(
                    torch.view_as_real(state), expected, rtol=1e-6, atol=1e-7
                )


def test_a_complex_vector_is_not_projected() -> None:
    """Its real view has two dimensions, but AdamP projects tensors of two or more dimensions of their own."""
    options = {"lr": 0.1, "delta": 100.0, "weight_decay": 0.1}
    for backend in (None, "reference"):
        param = Parameter(torch.complex(torch.arange(1.0, 4), torch.arange(2.0, 5)))
        pair = Parameter(torch.view_as_real(param.detach()).reshape(-1).clone())
        one = CASES["adamp"].make([param], **options, backend=backend)
        two = CASES["adamp"].make([pair], **options, backend="reference")
        for step in range(3):
            give_grads([pair], step)
            assert pair.grad is not None
            param.grad = torch.view_as_complex(pair.grad.reshape(-1, 2))
            one.step()
            two.step()
        torch.testing.assert_close(torch.view_as_real(param.detach()).reshape(-1), pair.detach())


@each_fused_backend
@each_case
def test_many_elements(case: Case, backend: str) -> None:
    """Sizes beyond one piece of a sum, one block of a loop, one chunk of a thread."""
    shapes = [(3, 5000), (70001,), (4097,), (2, 4096), (1, 300, 40), (300, 1)]
    runs = []
    for name in ("reference", backend):
        params = make_params(shapes)
        optimizer = case.make(params, backend=name)
        train(optimizer, params, 3)
        runs.append(tensors_of(optimizer))
    assert_same(runs[1], runs[0], rtol=1e-6, atol=1e-7)


@each_case
def test_a_bucket_larger_than_a_round(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists backend cuts large buckets and tensors; so small a round cuts every one of the test."""
    from ingot.backends import operands

    runs = []
    for limit in (10, operands.ROUND_ON_CPU):
        monkeypatch.setattr(operands, "ROUND_ON_CPU", limit)
        params = make_params(SHAPES)
        optimizer = case.make(params, backend="lists")
        train(optimizer, params, 4)
        runs.append(tensors_of(optimizer))
    assert_same(runs[0], runs[1], rtol=1e-6, atol=1e-7)
