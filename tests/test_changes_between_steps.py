"""Parameters, states and options that change between two steps: the step follows them."""

import copy

import pytest
import torch
from torch.nn import Parameter

from cases import Case, each_backend, each_case
from ingot.optim import NpuFusedSGD
from state_types import assert_kept, each_state_dtype, enough
from training import (
    SHAPES,
    assert_same,
    fit,
    give_grads,
    make_params,
    small_model,
    tensors_of,
    train,
    with_state,
)


@each_backend
@each_case
@each_state_dtype
def test_an_option_changed_in_a_group_counts(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    changed = with_state(case, params, lr=0.1, backend=backend, state_dtype=state_dtype)
    train(changed, params, 2)
    assert_kept(changed, state_dtype)
    changed.param_groups[0]["lr"] = 0.0
    changed.param_groups[0]["weight_decay"] = 0.0
    before = [p.detach().clone() for p in params]
    train(changed, params, 1, first=2)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))
    changed.param_groups[0]["maximize"] = True
    changed.param_groups[0]["lr"] = 0.1
    train(changed, params, 1, first=3)
    assert not torch.equal(params[0], before[0])


@each_backend
@each_case
@each_state_dtype
def test_a_flag_switched_on_later_counts(case: Case, backend: str, state_dtype: str | None) -> None:
    """Amsgrad or momentum after some steps: the missing state starts from nothing, the others go on."""
    flags = {"lamb": "adam", "adadelta": "weight_decay"}
    flags |= dict.fromkeys(["sgd", "rmsprop", "rmsprop_tf"], "momentum")
    flag = flags.get(case.name, "amsgrad")
    value = True if flag in ("adam", "amsgrad") else 0.9
    runs = []
    for name in ("reference", backend):
        params = make_params(enough(SHAPES, state_dtype))
        optimizer = case.make(params, backend=name, state_dtype=state_dtype)
        train(optimizer, params, 2)
        optimizer.param_groups[0][flag] = value
        train(optimizer, params, 3, first=2)
        optimizer.param_groups[0][flag] = type(value)(0)
        train(optimizer, params, 2, first=5)
        runs.append(tensors_of(optimizer))
        # SGD without momentum has no state; what is switched on here is its first.
        assert_kept(optimizer, state_dtype)
    # The buffer of RMSprop adds up seven updates of size 1; `lists` rounds their terms in another order.
    assert_same(runs[1], runs[0], rtol=1e-6, atol=2e-6 if backend == "lists" else 1e-7)
    names = {"momentum": "momentum_buffer", "amsgrad": "max_exp_avg_sq"}
    if flag in names:
        assert any(name.startswith(names[flag]) for name in runs[1])


@each_backend
@each_case
def test_the_model_changes_its_type(case: Case, backend: str) -> None:
    """model.double() in the middle: states follow, and the run goes on in the new precision."""
    net = small_model()
    optimizer = with_state(case, net.parameters(), backend=backend)
    fit(net, optimizer, 2)
    twin = copy.deepcopy(net).double()
    expected = with_state(case, twin.parameters(), backend="reference")
    saved = optimizer.state_dict()
    expected.load_state_dict(saved)
    net.double()
    for param in net.parameters():
        param.grad = None
    torch.manual_seed(2)
    data = torch.randn(6, 4, dtype=torch.float64)
    for _ in range(2):
        for each, stepper in ((net, optimizer), (twin, expected)):
            stepper.zero_grad()
            each(data).square().mean().backward()
            stepper.step()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        assert one.dtype is torch.float64
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)


@each_backend
@each_case
def test_the_model_becomes_half(case: Case, backend: str) -> None:
    params = make_params()
    optimizer = with_state(case, params, backend=backend)
    train(optimizer, params, 2)
    for param in params:
        param.data, param.grad = param.data.half(), None
    before = [p.detach().clone() for p in params]
    train(optimizer, params, 1, first=2)
    for param, old in zip(params, before, strict=True):
        assert param.dtype is torch.float16 and torch.isfinite(param).all()
        if case.kind.spec.counted:
            assert int(optimizer.state[param]["step"]) == 3
        wide = Parameter(old.float())
        # A step of RMSprop is up to ten times lr at first, 0.1.
        assert (param.detach() - wide.half()).abs().max().item() < 0.11 if param.numel() else True
        for name, value in optimizer.state[param].items():
            assert name == "step" or value.dtype is torch.float32


@each_backend
@each_case
@each_state_dtype
@pytest.mark.usefixtures("roots_for_codes")
def test_a_parameter_changed_by_hand_between_steps(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    params, copies = (make_params(enough(SHAPES, state_dtype)) for _ in range(2))
    one, two = (
        with_state(case, params, backend=backend, state_dtype=state_dtype),
        with_state(case, copies, backend="reference", state_dtype=state_dtype),
    )
    for step in range(4):
        with torch.no_grad():
            for param, other in zip(params, copies, strict=True):
                param.mul_(0.5)
                other.mul_(0.5)
        train(one, params, 1, first=step)
        train(two, copies, 1, first=step)
    assert_kept(one, state_dtype)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@each_case
@each_state_dtype
@pytest.mark.usefixtures("roots_for_codes")
def test_a_state_changed_by_hand_counts(case: Case, backend: str, state_dtype: str | None) -> None:
    """All of a state is set to zero: of codes its scales, which is what zeros are made of."""
    params, copies = (make_params(enough(SHAPES, state_dtype)) for _ in range(2))
    one, two = (
        with_state(case, params, backend=backend, state_dtype=state_dtype),
        with_state(case, copies, backend="reference", state_dtype=state_dtype),
    )
    for optimizer, group in ((one, params), (two, copies)):
        train(optimizer, group, 2)
        for param in group:
            slots = optimizer.state[param]
            name = next(n for n in slots if n != "step")
            name = name + "_scale" if name + "_scale" in slots else name
            slots[name] = torch.zeros_like(slots[name])
        assert_kept(optimizer, state_dtype)
        train(optimizer, group, 1, first=2)
        optimizer.state.clear()
        train(optimizer, group, 2, first=3)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)
    if case.kind.spec.counted:
        assert int(one.state[params[0]]["step"]) == 2


@each_backend
@each_case
@each_state_dtype
def test_a_parameter_handed_from_one_group_to_another(
    case: Case, backend: str, state_dtype: str | None
) -> None:
    """Group lists are plain lists; a script may move a parameter to a group with another rate."""
    more = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    more |= {"state_dtype": state_dtype, "backend": backend}
    one, two, three = make_params(enough([(4,), (3,), (2,)], state_dtype))
    groups = [{"params": [one, two], "lr": 0.1}, {"params": [three], "lr": 0.0}]
    optimizer = with_state(case, groups, lr=1.0, weight_decay=0.0, **more)
    train(optimizer, [one, two, three], 2)
    assert_kept(optimizer, state_dtype)
    optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    before = [p.detach().clone() for p in (one, two, three)]
    train(optimizer, [one, two, three], 1, first=2)
    moved = [not torch.equal(p, old) for p, old in zip((one, two, three), before, strict=True)]
    assert moved == [True, False, False]


@each_case
@each_state_dtype
def test_another_backend_chosen_later_counts(case: Case, state_dtype: str | None) -> None:
    params = make_params(enough(SHAPES, state_dtype))
    optimizer = with_state(case, params, state_dtype=state_dtype)
    train(optimizer, params, 3)
    assert_kept(optimizer, state_dtype)
    optimizer.backend = "reference"
    give_grads(params, 3)
    assert {bucket.backend.name for bucket in optimizer._plan()} == {"reference"}


def test_parameters_that_share_memory() -> None:
    """Two parameters made from one tensor: both updates count, whole or in part, found out at any step."""
    for begin in (0, 30000):
        base = torch.ones(60000 + begin)
        one, two = Parameter(base[:60000]), Parameter(torch.ones(60000))
        optimizer = NpuFusedSGD([one, two], lr=0.1)
        for step in range(6):
            if step == 3:
                two.data = base[begin:]
            one.grad, two.grad = torch.ones(60000), torch.full((60000,), 2.0)
            optimizer.step()
        expected = torch.ones(60000 + begin)
        expected[:60000] -= 0.6
        expected[begin:] -= 0.6
        torch.testing.assert_close(base, expected)


@each_case
def test_a_state_that_is_no_tensor(case: Case) -> None:
    """Set to None after some steps, it starts anew; anything else is refused by name."""
    params = make_params([(3,), (2, 2)])
    optimizer = with_state(case, params)
    train(optimizer, params, 3)
    name = next(name for name in optimizer.state[params[0]] if name != "step")
    optimizer.state[params[0]][name] = None
    train(optimizer, params, 1, first=3)
    assert optimizer.state[params[0]][name].shape == (3,)
    train(optimizer, params, 2, first=4)
    optimizer.state[params[0]][name] = "tensor"
    with pytest.raises(RuntimeError, match=f"parameter 0 of group 0.*{name} is str"):
        train(optimizer, params, 1, first=6)
