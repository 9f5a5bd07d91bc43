"""What torch_npu.optim was seen to get wrong, one test per finding: each would fail on such a defect."""

import copy

import torch
from torch import Tensor
from torch.nn import Linear, Parameter

from cases import Case, each_backend, each_case
from training import assert_same, give_grads, make_params, tensors_of, train, unclipped, with_state


def alone(case: Case, backend: str, shape: tuple[int, ...], grads: list[Tensor]) -> Tensor:
    """The parameter after those gradients when it is the only one: what any company must not change."""
    param = make_params([shape])[0]
    optimizer = with_state(case, [param], lr=0.1, backend=backend, **unclipped(case))
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    return param.detach()


@each_backend
@each_case
def test_step_before_any_backward(case: Case, backend: str) -> None:
    params = make_params()
    optimizer = with_state(case, params, backend=backend)
    before = [param.detach().clone() for param in params]
    assert optimizer.step() is None
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    assert len(optimizer.state) == 0
    train(optimizer, params, 1)
    assert not torch.equal(params[0], before[0])


@each_backend
@each_case
def test_closure_makes_the_first_gradients_and_runs_with_grad_enabled(
    case: Case, backend: str
) -> None:
    torch.manual_seed(0)
    model, data = Linear(3, 2), torch.randn(5, 3)
    twin = copy.deepcopy(model)
    optimizer, expected = (with_state(case, m.parameters(), backend=backend) for m in (model, twin))
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(data).square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert calls == [True]
    twin_loss = twin(data).square().sum()
    twin_loss.backward()
    expected.step()
    assert torch.equal(loss, twin_loss)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@each_backend
@each_case
def test_a_first_gradient_that_comes_late(case: Case, backend: str) -> None:
    """The parameter starts its own count with its own first gradient."""
    early, late = make_params([(3, 2), (3, 2)])
    late.data.copy_(early.data)
    optimizer = with_state(case, [early, late], lr=0.1, backend=backend, **unclipped(case))
    grads = [torch.full((3, 2), 0.5 + step) for step in range(5)]
    for step, grad in enumerate(grads):
        early.grad = grad.clone()
        late.grad = grads[step - 3].clone() if step >= 3 else None
        optimizer.step()
    torch.testing.assert_close(early.detach(), alone(case, backend, (3, 2), grads))
    torch.testing.assert_close(late.detach(), alone(case, backend, (3, 2), grads[:2]))
    if "step" in optimizer.state[early]:
        assert [int(optimizer.state[p]["step"]) for p in (early, late)] == [5, 2]


@each_backend
@each_case
def test_add_param_group_after_steps(case: Case, backend: str) -> None:
    (first,) = make_params([(3, 2)])
    optimizer = with_state(case, [first], lr=0.1, backend=backend, **unclipped(case))
    train(optimizer, [first], 2)
    (second,) = make_params([(3, 2)])
    optimizer.add_param_group({"params": [second]})
    grads = []
    for step in range(2, 4):
        give_grads([first], step)
        second.grad = torch.full((3, 2), float(step))
        grads.append(second.grad.clone())
        optimizer.step()
    torch.testing.assert_close(second.detach(), alone(case, backend, (3, 2), grads))
    if "step" in optimizer.state[first]:
        assert int(optimizer.state[first]["step"]) == 4


@each_backend
@each_case
def test_load_state_dict_after_a_step_counts(case: Case, backend: str) -> None:
    params, others = make_params(), make_params()
    source, target = (with_state(case, p, backend=backend) for p in (params, others))
    train(source, params, 4)
    train(target, others, 2, first=50)  # its own state, to be replaced
    target.load_state_dict(source.state_dict())
    with torch.no_grad():
        for new, old in zip(others, params, strict=True):
            new.copy_(old)
    train(source, params, 2, first=4)
    train(target, others, 2, first=4)
    assert_same(tensors_of(target), tensors_of(source))


@each_backend
@each_case
def test_no_stale_gradient_after_the_model_zeroed_its_own(case: Case, backend: str) -> None:
    """model.zero_grad() puts gradients elsewhere: the step must use the new ones."""
    torch.manual_seed(0)
    model, twin = Linear(4, 3), Linear(4, 3)
    twin.load_state_dict(model.state_dict())
    optimizer, expected = (with_state(case, m.parameters(), backend=backend) for m in (model, twin))
    for step in range(3):
        data = torch.randn(2, 4) * (step + 1)
        model.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        fresh = torch.autograd.grad(twin(data).sum(), list(twin.parameters()))
        for param, grad in zip(twin.parameters(), fresh, strict=True):
            param.grad = grad.clone()
        expected.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@each_backend
@each_case
def test_a_parameter_without_gradient_stays(case: Case, backend: str) -> None:
    moving, resting = make_params([(4,), (3, 2)])
    optimizer = with_state(case, [moving, resting], lr=0.1, backend=backend, **unclipped(case))
    train(optimizer, [moving, resting], 2)
    before = resting.detach().clone()
    states = copy.deepcopy(optimizer.state[resting])
    resting.grad = None
    for step in range(2, 4):
        give_grads([moving], step)
        optimizer.step()
    assert torch.equal(resting, before)
    for name, value in states.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(optimizer.state[resting][name]))


@each_backend
@each_case
def test_deepcopy_is_another_optimizer(case: Case, backend: str) -> None:
    params = make_params()
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, 3)
    # Copied together, as when the optimizer holds the only reference to its parameters.
    twin_params, twin = copy.deepcopy((params, optimizer))
    frozen = {name: value.clone() for name, value in tensors_of(optimizer).items()}
    train(twin, twin_params, 2, first=3)
    assert_same(tensors_of(optimizer), frozen)
    train(optimizer, params, 2, first=3)
    assert_same(tensors_of(twin), tensors_of(optimizer))
    assert not torch.equal(params[0], frozen["param 0 (7,)"])


@each_backend
@each_case
def test_channels_last_and_expanded_gradients(case: Case, backend: str) -> None:
    """Memory order is not element order; an expanded gradient has fewer numbers than elements."""
    value = torch.randn(4, 3, 2, 5)
    plain = Parameter(value.clone())
    odd = Parameter(value.clone().to(memory_format=torch.channels_last))
    optimizers = [with_state(case, [p], lr=0.1, backend=backend) for p in (plain, odd)]
    for step in range(3):
        expanded = torch.randn(1, 3, 1, 5).expand(4, 3, 2, 5)
        odd.grad = torch.randn(4, 3, 2, 5) if step == 0 else expanded
        plain.grad = odd.grad.contiguous()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(odd.detach(), plain.detach(), rtol=1e-6, atol=1e-7)
    assert odd.is_contiguous(memory_format=torch.channels_last)


@each_backend
@each_case
def test_every_parameter_has_its_own_step(case: Case, backend: str) -> None:
    params = make_params([(3,), (2, 2), (4,)])
    optimizer = with_state(case, params, lr=0.1, backend=backend, **unclipped(case))
    given: list[list[Tensor]] = [[], [], []]
    for step in range(6):
        for number, param in enumerate(params):
            param.grad = None
            if step % (number + 1) == 0:
                give_grads([param], 10 * step + number)
                given[number].append(param.grad.clone())
        optimizer.step()
    assert [len(grads) for grads in given] == [6, 3, 2]
    for number, (param, start) in enumerate(
        zip(params, make_params([(3,), (2, 2), (4,)]), strict=True)
    ):
        single = with_state(case, [start], lr=0.1, backend=backend, **unclipped(case))
        for grad in given[number]:
            start.grad = grad
            single.step()
        torch.testing.assert_close(param, start, rtol=1e-6, atol=1e-7)
