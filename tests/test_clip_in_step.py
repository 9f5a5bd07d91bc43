"""Clipping inside the step: as torch.nn.utils.clip_grad_norm_ followed by the step."""

import math

import pytest
import torch
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from cases import CASES, Case, each_backend, each_case
from ingot.optim import NpuFusedAdamW
from state_types import assert_kept, each_state_dtype, enough
from training import SHAPES, assert_same, give_grads, make_params, set_grad, tensors_of, with_state


@each_backend
@each_case
@pytest.mark.parametrize(
    ("dtype", "state_dtype"),
    [(torch.float32, None), (torch.float64, None), (torch.float32, "8bit")],
    ids=["float32", "float64", "8-bit states"],
)
@pytest.mark.parametrize("limit", [0.5, 1e4])
def test_max_grad_norm_is_clip_then_step(
    case: Case, limit: float, dtype: torch.dtype, state_dtype: str | None, backend: str
) -> None:
    """Gradients of all groups count together, and .grad itself stays as it is."""
    if case.name == "bert_adam":
        clipping, plain = {"max_grad_norm": limit, "clip_scope": "global"}, {"max_grad_norm": -1}
    else:
        clipping, plain = {"max_grad_norm": limit}, {}
    if case.name == "sgd":
        clipping, plain = clipping | {"momentum": 0.9}, {"momentum": 0.9}
    shapes = enough(SHAPES, state_dtype)
    ours, theirs = make_params(shapes, dtype), make_params(shapes, dtype)
    one, two = (
        case.make(
            [{"params": params[:4]}, {"params": params[4:]}],
            **options,
            backend=backend,
            state_dtype=state_dtype,
        )
        for params, options in ((ours, clipping), (theirs, plain))
    )
    for step in range(4):
        give_grads(ours, step)
        give_grads(theirs, step)
        kept = [p.grad.clone() for p in ours]
        expected = clip_grad_norm_(theirs, limit)
        one.step()
        two.step()
        assert all(torch.equal(p.grad, grad) for p, grad in zip(ours, kept, strict=True))
        assert one.grad_norm.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_kept(one, state_dtype)
    close = 1e-13 if dtype is torch.float64 else 2e-6
    assert_same(tensors_of(one), tensors_of(two), rtol=close, atol=close / 2)


@each_backend
@each_case
def test_max_grad_norm_of_one_group_only(case: Case, backend: str) -> None:
    """A group without clipping stays unclipped, and its gradients count in the norm of the other."""
    none = -1 if case.name == "bert_adam" else None
    scope = {"clip_scope": "global"} if case.name == "bert_adam" else {}
    momentum = {"momentum": 0.9} if case.name == "sgd" else {}
    # What one step makes of a gradient in one of the states.
    name, state_of = {
        "sgd": ("momentum_buffer", lambda grad: grad),
        "adadelta": ("square_avg", lambda grad: 0.1 * grad * grad),
        "rmsprop": ("square_avg", lambda grad: 0.01 * grad * grad),
        "rmsprop_tf": ("square_avg", lambda grad: 0.9 + 0.1 * grad * grad),
    }.get(case.name, ("exp_avg", lambda grad: 0.1 * grad))
    one, two = make_params([(4,), (3,)])
    groups = [{"params": [one], "max_grad_norm": 0.5}, {"params": [two], "max_grad_norm": none}]
    optimizer = case.make(groups, **scope, **momentum, backend=backend)
    one.grad, two.grad = torch.full((4,), 3.0), torch.full((3,), 4.0)
    total = math.sqrt(4 * 9 + 3 * 16)
    optimizer.step()
    states = optimizer.state
    torch.testing.assert_close(
        states[one][name], torch.full((4,), state_of(3.0 * 0.5 / (total + 1e-6))), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        states[two][name], torch.full((3,), state_of(4.0)), rtol=1e-6, atol=0
    )


@each_backend
@pytest.mark.parametrize("size", [3.0, 1e-3], ids=["large gradients", "small gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lamb_divides_by_the_global_norm(dtype: torch.dtype, size: float, backend: str) -> None:
    """By the norm of all groups and types, and only if it is above 1."""
    shapes = [(7,), (4, 3), ()]
    ours = make_params(shapes, dtype) + make_params(shapes, torch.bfloat16)
    theirs = [Parameter(p.detach().clone()) for p in ours]
    one = CASES["lamb"].make(
        [{"params": ours[:2]}, {"params": ours[2:]}],
        use_global_grad_norm=True,
        lr=0.1,
        backend=backend,
    )
    two = CASES["lamb"].make(
        [{"params": theirs[:2]}, {"params": theirs[2:]}], lr=0.1, backend=backend
    )
    for step in range(3):
        give_grads(ours, step)
        for our in ours:
            our.grad.mul_(size)
        total = math.sqrt(sum(p.grad.double().square().sum().item() for p in ours))
        assert (total > 1) == (size == 3.0)
        for our, their in zip(ours, theirs, strict=True):
            wide = torch.float64 if our.dtype is torch.float64 else torch.float32
            set_grad(their, our.grad.to(wide) / max(total, 1.0))
        one.step()
        two.step()
    first, second = tensors_of(one), tensors_of(two)
    assert list(first) == list(second)
    for name, value in first.items():
        close = 2.0**-7 if value.dtype is torch.bfloat16 else 2e-6
        torch.testing.assert_close(value, second[name], rtol=close, atol=close / 10)


@each_backend
@pytest.mark.parametrize("scope", ["group", "global"])
def test_bert_adam_norms(scope: str, backend: str) -> None:
    """'group': one norm per group and type of parameter; 'global': one for everything."""
    shapes = [(7,), (4, 3)]
    params = [
        *make_params(shapes),
        *make_params(shapes, torch.bfloat16),
        *make_params(shapes),
        *make_params(shapes, torch.float64),
    ]
    limits = [0.5, 2.0]
    groups = [
        {"params": params[:4], "max_grad_norm": limits[0]},
        {"params": params[4:], "max_grad_norm": limits[1]},
    ]
    optimizer = CASES["bert_adam"].make(groups, clip_scope=scope, b1=0.0, backend=backend)
    give_grads(params, 0)
    optimizer.step()
    members = [params[:2], params[2:4], params[4:6], params[6:]]
    for number, same in enumerate(members):
        counted = params if scope == "global" else same
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in counted))
        factor = min(1.0, limits[number // 2] / (norm + 1e-6))
        assert factor < 1
        for param in same:
            # With b1 = 0 the average is the clipped gradient itself.
            actual = optimizer.state[param]["exp_avg"].double()
            expected = param.grad.double() * factor
            torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-12)


@each_backend
def test_norm_over_parameters_at_different_steps(backend: str) -> None:
    """Parameters that joined later are updated apart, but clipped by the common norm."""
    params = make_params([(7,), (4, 3)])
    optimizer = CASES["bert_adam"].make(params, b1=0.0, max_grad_norm=0.5, backend=backend)
    give_grads(params[:1], 0)
    optimizer.step()
    give_grads(params, 1)
    optimizer.step()
    assert [optimizer.state[param]["step"] for param in params] == [2, 1]
    norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in params))
    for param in params:
        expected = param.grad.double() * 0.5 / (norm + 1e-6)
        actual = optimizer.state[param]["exp_avg"].double()
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-12)


@each_backend
def test_bert_adam_clips_by_default(backend: str) -> None:
    params = make_params([(7,)])
    optimizer = CASES["bert_adam"].make(params, b1=0.0, backend=backend)
    params[0].grad = torch.full((7,), 5.0)
    optimizer.step()
    assert optimizer.state[params[0]]["exp_avg"].norm().item() == pytest.approx(1.0, rel=1e-5)


@each_backend
@each_case
@each_state_dtype
def test_grad_norm_is_none_where_nothing_is_clipped(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    options = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    optimizer = with_state(case, params, **options, backend=backend, state_dtype=state_dtype)
    give_grads(params, 0)
    optimizer.step()
    assert_kept(optimizer, state_dtype)
    assert optimizer.grad_norm is None


@each_case
def test_a_saved_limit_wins_over_the_constructors(case: Case) -> None:
    none = -1 if case.name == "bert_adam" else None
    for saved, given in ((0.5, 9.0), (none, 9.0), (0.5, none)):
        state = case.make(make_params(), max_grad_norm=saved).state_dict()
        optimizer = case.make(make_params(), max_grad_norm=given)
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["max_grad_norm"] == saved


@each_backend
@each_case
@each_state_dtype
def test_clipping_with_maximize(case: Case, backend: str, state_dtype: str | None) -> None:
    """The sign of the gradient is not part of its norm."""
    ups, downs = (make_params(enough(SHAPES, state_dtype)) for _ in range(2))
    more = {"max_grad_norm": 0.5, "backend": backend, "state_dtype": state_dtype}
    up, down = with_state(case, ups, maximize=True, **more), with_state(case, downs, **more)
    for step in range(3):
        give_grads(ups, step)
        for one, two in zip(ups, downs, strict=True):
            two.grad = -one.grad
        up.step()
        down.step()
        assert up.grad_norm is not None and torch.equal(up.grad_norm, down.grad_norm)
    assert_kept(up, state_dtype)
    assert_same(tensors_of(up), tensors_of(down))


@each_backend
def test_the_norm_of_float64_gradients_of_float32_parameters(backend: str) -> None:
    """Read in their own type: 1e39 is no float32, but its norm is known."""
    param = Parameter(torch.ones(4))
    set_grad(param, torch.full((4,), 1e39, dtype=torch.float64))
    optimizer = NpuFusedAdamW([param], max_grad_norm=1.0, backend=backend)
    optimizer.step()
    assert optimizer.grad_norm is not None
    assert optimizer.grad_norm.item() == pytest.approx(2e39)
