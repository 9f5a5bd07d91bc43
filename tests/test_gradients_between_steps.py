"""Gradients that are replaced between two steps, share memory or are conjugated: the step follows them."""

import pytest
import torch

from cases import Case, each_backend, each_case
from ingot.optim import NpuFusedAdamW
from state_types import assert_kept, each_state_dtype, enough
from training import assert_same, give_grads, make_params, tensors_of, with_state


@each_backend
@each_case
@each_state_dtype
@pytest.mark.usefixtures("roots_for_codes")
def test_gradients_replaced_between_steps(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    """In place, by assignment, of another type, as a view of something larger: always the one of now."""
    params, copies = (make_params(enough([(6,), (3, 4)], state_dtype)) for _ in range(2))
    one, two = (
        with_state(case, params, backend=backend, state_dtype=state_dtype),
        with_state(case, copies, backend="reference", state_dtype=state_dtype),
    )
    for step in range(5):
        give_grads(copies, step)
        for param, other in zip(params, copies, strict=True):
            grad = other.grad
            if step == 1 and param.grad is not None:
                param.grad.copy_(grad)
            elif step == 2:
                param.grad = torch.cat([grad, grad])[: len(grad)]
            elif step == 3:
                param.grad = None
                param.grad = grad.clone().t().contiguous().t() if grad.ndim == 2 else grad.clone()
            else:
                param.grad = grad.clone()
        one.step()
        two.step()
    assert_kept(one, state_dtype)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@each_case
@each_state_dtype
@pytest.mark.usefixtures("roots_for_codes")
def test_gradients_that_share_memory(case: Case, backend: str, state_dtype: str | None) -> None:
    """One buffer for all gradients, as DistributedDataParallel has them."""
    params, copies = (make_params(enough([(6,), (3, 4), (5,)], state_dtype)) for _ in range(2))
    one, two = (
        with_state(case, params, backend=backend, state_dtype=state_dtype),
        with_state(case, copies, backend="reference", state_dtype=state_dtype),
    )
    sizes = [param.numel() for param in params]
    buffer = torch.zeros(sum(sizes))
    for param, piece in zip(params, buffer.split(sizes), strict=True):
        param.grad = piece.view(param.shape)
    for step in range(3):
        give_grads(copies, step)
        buffer.copy_(torch.cat([p.grad.reshape(-1) for p in copies]))
        one.step()
        two.step()
    assert_kept(one, state_dtype)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@pytest.mark.parametrize("clip", [None, 0.1])
def test_conjugated_gradients(backend: str, clip: float | None) -> None:
    """Backward through conj() leaves a lazily conjugated gradient: it counts as what it stands for."""
    params, copies = ([torch.ones(3, dtype=torch.complex64, requires_grad=True)] for _ in range(2))
    lazy, plain = (
        NpuFusedAdamW(p, lr=0.1, max_grad_norm=clip, backend=backend) for p in (params, copies)
    )
    for _ in range(3):
        grad = torch.tensor([1 + 1j, 2 - 1j, 0.5j])
        params[0].grad, copies[0].grad = grad.conj(), grad.conj().resolve_conj()
        assert params[0].grad.is_conj()
        norms = lazy.clip_grad_norm_fused_(1.0), plain.clip_grad_norm_fused_(1.0)
        assert torch.equal(*norms)
        lazy.step()
        plain.step()
    assert_same(tensors_of(lazy), tensors_of(plain))


def test_a_conjugated_parameter_is_refused() -> None:
    param = torch.ones(3, dtype=torch.complex64).conj().requires_grad_()
    param.grad = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="parameter 0 of group 0: a lazily conjugated view"):
        NpuFusedAdamW([param]).step()
