"""What Adadelta, RMSprop and RMSpropTF do that their oracles do not show."""

import pytest
import torch
from torch import Tensor

from cases import CASES, Case, each_backend
from training import make_params, tensors_of, train

CENTERED = [pytest.param(CASES[name], id=name) for name in ("rmsprop", "rmsprop_tf")]


def gradients() -> Tensor:
    """Some thousand numbers of very different size."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(4096, generator=generator) * torch.logspace(-6, 6, 4096)


@each_backend
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CENTERED)
def test_a_variance_below_zero_counts_as_zero(
    case: Case, state_dtype: torch.dtype | None, momentum: float, backend: str
) -> None:
    """A constant gradient has no variance but for roundings, which may leave less than nothing."""
    param = torch.zeros(4096, requires_grad=True)
    options = {"alpha": 0.5, "eps": 1e-3, "centered": True, "momentum": momentum}
    optimizer = case.make([param], **options, state_dtype=state_dtype, backend=backend)
    param.grad = gradients()
    for _ in range(40):
        optimizer.step()
    assert bool(param.isfinite().all())


def test_torch_gives_nan_there() -> None:
    """Or this would be a promise about nothing."""
    param = torch.zeros(4096, requires_grad=True)
    optimizer = torch.optim.RMSprop([param], alpha=0.5, eps=1e-3, centered=True)
    param.grad = gradients()
    for _ in range(40):
        optimizer.step()
    assert bool(param.isnan().any())


@each_backend
def test_decoupled_decay_has_no_rate_in_it(backend: str) -> None:
    """Differs from timm: the factor is 1 - weight_decay, whatever lr is, and the gradient stays as it is."""
    grad = torch.tensor([0.5, -1.0, 2.0])
    for lr in (0.01, 0.1):
        param = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
        optimizer = CASES["rmsprop_tf"].make(
            [param], lr=lr, weight_decay=0.25, decoupled_decay=True, backend=backend
        )
        param.grad = grad.clone()
        optimizer.step()
        square_avg = 0.9 + 0.1 * grad * grad
        expected = 0.75 * torch.tensor([1.0, -2.0, 3.0]) - lr * grad / torch.sqrt(
            square_avg + 1e-10
        )
        torch.testing.assert_close(param.detach(), expected, rtol=1e-6, atol=1e-7)


@each_backend
@pytest.mark.parametrize("name", ["adam", "adadelta", "rmsprop", "rmsprop_tf"])
def test_a_state_of_torch_npu_goes_on_here(name: str, backend: str) -> None:
    """It has the same names, an integer step, and groups without the options torch has added since."""
    case = CASES[name]
    params = make_params()
    source = case.make(params, backend="reference")
    train(source, params, 3)
    saved = source.state_dict()
    for slots in saved["state"].values():
        slots["step"] = int(slots["step"])
    for group in saved["param_groups"]:
        for option in group.keys() - case.signature.keys() - {"params"}:
            del group[option]
    others = [param.detach().clone().requires_grad_() for param in params]
    target = case.make(others, backend=backend)
    target.load_state_dict(saved)
    train(source, params, 2, first=3)
    train(target, others, 2, first=3)
    ours, theirs = tensors_of(target), tensors_of(source)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-6, atol=1e-6)


@each_backend
def test_nothing_decays_while_the_rate_is_zero(backend: str) -> None:
    """torch.distributed.checkpoint makes states by a step with lr=0, after it has loaded the parameters."""
    param = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    optimizer = CASES["rmsprop_tf"].make(
        [param], lr=0.0, weight_decay=0.25, decoupled_decay=True, backend=backend
    )
    param.grad = torch.ones(3)
    optimizer.step()
    assert param.tolist() == [1.0, -2.0, 3.0]
