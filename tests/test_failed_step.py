"""A step that fails changes nothing: no parameter, no state, no step count; and says which parameter it was."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from cases import Case, each_backend, each_case
from state_types import assert_kept, each_state_dtype, enough
from training import assert_unchanged, give_grads, make_params, picture, set_grad, tensors_of, train

SHAPES = [(3, 2), (4,), (5, 2), (6,)]
MIDDLE = 2  # which parameter goes wrong: some come before it, one after


def sparse_gradient(param: Tensor) -> None:
    param.grad = None
    param.grad = torch.sparse_coo_tensor([[0], [1]], [1.0], param.shape, check_invariants=True)


def other_shape(param: Tensor) -> None:
    param.data = torch.randn(7, 3)


def same_numel_other_shape(param: Tensor) -> None:
    param.data = param.data.reshape(2, -1)


def resized_with_its_gradient(param: Tensor) -> None:
    param.grad = None
    param.data = torch.randn(7, 3)
    param.grad = torch.randn(7, 3)


def expanded(param: Tensor) -> None:
    param.data = torch.ones(1, 2).expand(param.shape)


def overlapping(param: Tensor) -> None:
    param.data = torch.ones(2 * len(param)).as_strided(param.shape, (1, 2))


# What goes wrong, and what the message says; ROWS stands for the length of the parameter.
TROUBLES: list[tuple[Callable[[Tensor], None], str]] = [
    (sparse_gradient, "sparse"),
    (other_shape, r"\(7, 3\).*\(ROWS, 2\)"),
    (same_numel_other_shape, r"\(2, ROWS\).*\(ROWS, 2\)"),
    (expanded, r"share memory.*\(ROWS, 2\).*\(0, 1\)"),
    (overlapping, r"share memory.*\(ROWS, 2\).*\(1, 2\)"),
]


def build(case: Case, named: bool, backend: str, state_dtype: str | None = None):
    params = make_params(enough(SHAPES, state_dtype))
    options = {"momentum": 0.9} if case.name == "sgd" else {}
    given = [(f"layer.{i}", p) for i, p in enumerate(params)] if named else params
    return params, case.make(given, **options, backend=backend, state_dtype=state_dtype)


@each_backend
@each_case
@each_state_dtype
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("steps", [0, 2], ids=["first step", "later step"])
@pytest.mark.parametrize(("trouble", "message"), TROUBLES, ids=lambda t: getattr(t, "__name__", ""))
def test_nothing_changes(
    case: Case,
    trouble: Callable[[Tensor], None],
    message: str,
    steps: int,
    named: bool,
    backend: str,
    state_dtype: str | None,
) -> None:
    params, optimizer = build(case, named, backend, state_dtype)
    message = message.replace("ROWS", str(len(params[MIDDLE])))
    train(optimizer, params, steps)
    if steps:
        assert_kept(optimizer, state_dtype)
    give_grads(params, steps)
    trouble(params[MIDDLE])
    before = picture(optimizer)
    with pytest.raises(RuntimeError, match=message) as caught:
        optimizer.step()
    assert case.kind.__name__ in str(caught.value)
    assert f"parameter {MIDDLE}" in str(caught.value)
    assert ("layer.2" in str(caught.value)) == named
    assert_unchanged(optimizer, before)
    assert len(optimizer.state) == (len(params) if steps else 0)


@each_backend
@each_case
@each_state_dtype
def test_after_a_failed_step_training_goes_on_as_if_nothing_happened(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    params, optimizer = build(case, False, backend, state_dtype)
    others, undisturbed = build(case, False, backend, state_dtype)
    for step in range(4):
        give_grads(params, step)
        give_grads(others, step)
        good = params[MIDDLE].grad
        sparse_gradient(params[MIDDLE])
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()
        params[MIDDLE].grad = good
        optimizer.step()
        undisturbed.step()
    assert_kept(optimizer, state_dtype)
    for (name, one), (_, two) in zip(
        tensors_of(optimizer).items(), tensors_of(undisturbed).items(), strict=True
    ):
        assert torch.equal(one, two), name


@each_backend
@each_case
@each_state_dtype
def test_a_resized_parameter_does_not_take_its_old_state(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    params, optimizer = build(case, False, backend, state_dtype)
    rows = len(params[MIDDLE])
    train(optimizer, params, 2)
    assert_kept(optimizer, state_dtype)
    give_grads(params, 2)
    resized_with_its_gradient(params[MIDDLE])
    before = picture(optimizer)
    with pytest.raises(
        RuntimeError, match=rf"parameter 2.*\(7, 3\).*\({rows}, 2\).*optimizer.state"
    ):
        optimizer.step()
    assert_unchanged(optimizer, before)
    del optimizer.state[params[MIDDLE]]  # what the message advises
    optimizer.step()
    if case.kind.spec.counted:
        assert [int(optimizer.state[p]["step"]) for p in params] == [3, 3, 1, 3]


@each_backend
@each_case
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool], ids=str)
def test_integer_parameters(case: Case, dtype: torch.dtype, backend: str) -> None:
    params, optimizer = build(case, False, backend)
    give_grads(params, 0)
    params[MIDDLE].grad = None
    params[MIDDLE].requires_grad_(False)
    params[MIDDLE].data = torch.ones(5, 2, dtype=dtype)
    params[MIDDLE].grad = torch.ones(5, 2, dtype=dtype)
    before = picture(optimizer)
    with pytest.raises(RuntimeError, match=f"parameter 2 .*{dtype}"):
        optimizer.step()
    assert_unchanged(optimizer, before)


@each_backend
@each_case
def test_meta_parameters(case: Case, backend: str) -> None:
    params = make_params(SHAPES)
    params[MIDDLE] = Parameter(torch.zeros(5, 2, device="meta"))
    optimizer = case.make(params, backend=backend)
    real = [param for param in params if not param.is_meta]
    give_grads(real, 0)
    params[MIDDLE].grad = torch.zeros(5, 2, device="meta")
    before = [param.detach().clone() for param in real]
    with pytest.raises(RuntimeError, match=f"{case.kind.__name__}: parameter 2 .*meta"):
        optimizer.step()
    assert all(torch.equal(one, two) for one, two in zip(real, before, strict=True))
    assert len(optimizer.state) == 0


@each_case
def test_a_real_gradient_of_a_complex_parameter(case: Case) -> None:
    param = Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = case.make([param])
    set_grad(param, torch.ones(3))
    with pytest.raises(RuntimeError, match=r"complex64.*float32"):
        optimizer.step()
    assert torch.equal(param, torch.ones(3, dtype=torch.complex64))


@each_case
@each_state_dtype
def test_a_failing_closure_changes_nothing(case: Case, state_dtype: str | None) -> None:
    params, optimizer = build(case, False, "lists", state_dtype)
    train(optimizer, params, 1)
    before = picture(optimizer)

    def closure() -> Tensor:
        raise KeyError("out of data")

    with pytest.raises(KeyError, match="out of data"):
        optimizer.step(closure)
    assert_unchanged(optimizer, before)


@each_case
def test_a_failing_clip_changes_nothing(case: Case) -> None:
    params, optimizer = build(case, False, "lists")
    give_grads(params, 0)
    sparse_gradient(params[MIDDLE])
    kept = [p.grad.clone() for p in params]
    with pytest.raises(RuntimeError, match=f"{case.kind.__name__}.*sparse"):
        optimizer.clip_grad_norm_fused_(0.1)
    for param, grad in zip(params, kept, strict=True):
        assert torch.equal(param.grad.to_dense(), grad.to_dense())
