"""What users of torch.optim rely on: groups, closures, hooks, copies, compile, contexts, tensors that change."""

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from cases import CASES, Case, each_backend, each_case
from ingot.base import FusedOptimizer
from training import (
    assert_same,
    assert_unchanged,
    give_grads,
    make_params,
    picture,
    tensors_of,
    train,
)


def make(case: Case, params: Any, **options: Any) -> FusedOptimizer:
    """SGD with momentum, so that every optimizer under test has a state."""
    return case.make(params, **({"momentum": 0.9} if case.name == "sgd" else {}), **options)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


def fit(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[float]:
    """A small training loop; the losses."""
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(6, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@each_backend
@each_case
def test_groups_have_their_own_options(case: Case, backend: str) -> None:
    """Each group computes what an optimizer of its own would."""
    clip = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    params, copies = make_params([(4,), (3, 2)]), make_params([(4,), (3, 2)])
    options = [{"lr": 0.3, "weight_decay": 0.0}, {"lr": 0.01, "weight_decay": 0.5}]
    groups = [{"params": [p], **o} for p, o in zip(params, options, strict=True)]
    together = make(case, groups, lr=0.5, backend=backend, **clip)
    apart = [
        make(case, [p], **o, backend=backend, **clip) for p, o in zip(copies, options, strict=True)
    ]
    for step in range(3):
        give_grads(params, step)
        give_grads(copies, step)
        together.step()
        for optimizer in apart:
            optimizer.step()
    for one, two in zip(params, copies, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@each_backend
@each_case
def test_an_option_changed_in_a_group_counts(case: Case, backend: str) -> None:
    params, copies = make_params(), make_params()
    changed, fresh = (make(case, p, lr=0.1, backend=backend) for p in (params, copies))
    train(changed, params, 2)
    train(fresh, copies, 2)
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
def test_a_flag_switched_on_later_counts(case: Case, backend: str) -> None:
    """Amsgrad or momentum after some steps: the missing state starts from nothing, the others go on."""
    flag = {"sgd": "momentum", "lamb": "adam"}.get(case.name, "amsgrad")
    value = 0.9 if flag == "momentum" else True
    runs = []
    for name in ("reference", backend):
        params = make_params()
        optimizer = case.make(params, backend=name)
        train(optimizer, params, 2)
        optimizer.param_groups[0][flag] = value
        train(optimizer, params, 3, first=2)
        optimizer.param_groups[0][flag] = type(value)(0)
        train(optimizer, params, 2, first=5)
        runs.append(tensors_of(optimizer))
    assert_same(runs[1], runs[0], rtol=1e-6, atol=1e-7)
    names = {"momentum": "momentum_buffer", "amsgrad": "max_exp_avg_sq"}
    if flag in names:
        assert any(name.startswith(names[flag]) for name in runs[1])


@each_case
def test_the_closure_runs_first_and_once(case: Case) -> None:
    net = model()
    optimizer = make(case, net.parameters())
    seen: list[Any] = []

    def closure() -> Tensor:
        seen.append([p.detach().clone() for p in net.parameters()])
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    start = [p.detach().clone() for p in net.parameters()]
    loss = optimizer.step(closure)
    assert len(seen) == 1
    assert all(torch.equal(a, b) for a, b in zip(seen[0], start, strict=True))
    assert loss.requires_grad
    optimizer.step(closure=closure)
    assert len(seen) == 2


@each_case
def test_step_and_state_hooks(case: Case) -> None:
    params = make_params()
    optimizer = make(case, params)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda o, a, k: calls.append("before step"))
    optimizer.register_step_post_hook(lambda o, a, k: calls.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("before save"))
    optimizer.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda o, s: {k: v for k, v in s.items() if k != "extra"}
    )
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("after load"))
    train(optimizer, params, 1)
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    optimizer.load_state_dict(saved)
    assert calls == ["before step", "after step", "before save", "after load"]


@each_case
def test_a_pre_hook_may_change_the_gradients(case: Case) -> None:
    params, copies = make_params(), make_params()
    hooked, plain = make(case, params), make(case, copies)

    def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
        for param in params:
            param.grad = param.grad / 2

    hooked.register_step_pre_hook(halve)
    for step in range(2):
        give_grads(params, step)
        give_grads(copies, step)
        for param in copies:
            param.grad = param.grad / 2
        hooked.step()
        plain.step()
    assert_same(tensors_of(hooked), tensors_of(plain))


def test_global_hooks() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    calls = []
    handle = register_optimizer_step_post_hook(lambda o, a, k: calls.append(type(o).__name__))
    try:
        for case in CASES.values():
            params = make_params()
            train(case.make(params), params, 1)
    finally:
        handle.remove()
    assert calls == [case.kind.__name__ for case in CASES.values()]


@each_backend
@each_case
def test_pickle_goes_on_with_the_same_numbers(case: Case, backend: str) -> None:
    params = make_params()
    optimizer = make(case, params, backend=backend)
    train(optimizer, params, 2)
    copies, twin = pickle.loads(pickle.dumps((params, optimizer)))
    assert twin.param_groups[0]["params"][0] is copies[0]
    train(optimizer, params, 2, first=2)
    train(twin, copies, 2, first=2)
    assert_same(tensors_of(twin), tensors_of(optimizer))
    assert twin.backend == backend


@each_case
def test_the_optimizer_itself_can_be_saved(case: Case) -> None:
    params = make_params()
    optimizer = make(case, params)
    train(optimizer, params, 2)
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert_same(tensors_of(twin), tensors_of(optimizer))
    train(twin, [p for g in twin.param_groups for p in g["params"]], 1, first=2)


@each_case
def test_repr_lists_the_options(case: Case) -> None:
    text = repr(make(case, make_params(), lr=0.125))
    assert text.startswith(f"{case.kind.__name__} (")
    assert "lr: 0.125" in text
    for name in set(case.signature) - {"lr", "momentum"}:
        assert f"{name}: {case.signature[name]}" in text


@each_case
def test_isinstance_of_torchs_optimizer(case: Case) -> None:
    optimizer = case.make(make_params())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.defaults["lr"] == optimizer.param_groups[0]["lr"]


@each_case
def test_named_parameters(case: Case) -> None:
    net, twin = model(), model()
    named, plain = make(case, net.named_parameters()), make(case, twin.parameters())
    assert fit(net, named) == fit(twin, plain)
    assert named.param_groups[0]["param_names"] == [name for name, _ in net.named_parameters()]
    resumed = make(case, model().named_parameters())
    resumed.load_state_dict(named.state_dict())
    assert resumed.param_groups[0]["param_names"] == named.param_groups[0]["param_names"]


@each_case
def test_frozen_parameters(case: Case) -> None:
    net = model()
    net[0].requires_grad_(False)
    frozen = [p.detach().clone() for p in net[0].parameters()]
    fit(net, make(case, net.parameters(), lr=0.1))
    assert all(torch.equal(a, b) for a, b in zip(net[0].parameters(), frozen, strict=True))


@each_case
def test_a_parameter_of_no_graph_is_refused_as_torch_does(case: Case) -> None:
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="non-leaf"):
        case.make([leaf * 2])
    with pytest.raises(ValueError, match="empty parameter list"):
        case.make([])
    with pytest.raises(TypeError):
        case.make(leaf)


@each_case
def test_a_parameter_in_two_groups_is_refused(case: Case) -> None:
    one, two = make_params([(3,), (2,)])
    optimizer = make(case, [one])
    before = picture(optimizer)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [two, one]})
    assert_unchanged(optimizer, before)


@each_case
def test_a_parameter_twice_in_a_group_warns_as_torch_does(case: Case) -> None:
    (param,) = make_params([(3,)])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        case.make([param, param])


@each_case
def test_tied_weights_are_updated_once(case: Case) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.two.weight = self.one.weight

        def forward(self, data: Tensor) -> Tensor:
            return self.two(self.one(data))

    torch.manual_seed(0)
    net = Tied()
    optimizer = make(case, net.parameters())
    fit(net, optimizer, 2)
    assert len(optimizer.state) == 1
    if case.kind.spec.counted:
        assert int(optimizer.state[net.one.weight]["step"]) == 2


@each_backend
@each_case
def test_two_optimizers_do_not_disturb_each_other(case: Case, backend: str) -> None:
    """The same shapes in the same process: nothing that a backend keeps may be shared."""
    sets = [make_params(seed=seed) for seed in (0, 1)]
    pair = [make(case, params, lr=0.1, backend=backend) for params in sets]
    for step in range(3):
        for number, (optimizer, params) in enumerate(zip(pair, sets, strict=True)):
            train(optimizer, params, 1, first=10 * number + step)
    for number in range(2):
        params = make_params(seed=number)
        alone = make(case, params, lr=0.1, backend=backend)
        train(alone, params, 3, first=10 * number)
        assert_same(tensors_of(pair[number]), tensors_of(alone))


@each_backend
@each_case
def test_gradients_replaced_between_steps(case: Case, backend: str) -> None:
    """In place, by assignment, of another type, as a view of something larger: always the one of now."""
    params, copies = make_params([(6,), (3, 4)]), make_params([(6,), (3, 4)])
    one, two = make(case, params, backend=backend), make(case, copies, backend="reference")
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
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@each_case
def test_gradients_that_share_memory(case: Case, backend: str) -> None:
    """One buffer for all gradients, as DistributedDataParallel has them."""
    params, copies = make_params([(6,), (3, 4), (5,)]), make_params([(6,), (3, 4), (5,)])
    one, two = make(case, params, backend=backend), make(case, copies, backend="reference")
    buffer = torch.zeros(23)
    for param, piece in zip(params, buffer.split([6, 12, 5]), strict=True):
        param.grad = piece.view(param.shape)
    for step in range(3):
        give_grads(copies, step)
        buffer.copy_(torch.cat([p.grad.reshape(-1) for p in copies]))
        one.step()
        two.step()
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@each_case
def test_the_model_changes_its_type(case: Case, backend: str) -> None:
    """model.double() in the middle: states follow, and the run goes on in the new precision."""
    net = model()
    optimizer = make(case, net.parameters(), backend=backend)
    fit(net, optimizer, 2)
    twin = copy.deepcopy(net).double()
    expected = make(case, twin.parameters(), backend="reference")
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
    optimizer = make(case, params, backend=backend)
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
        assert (param.detach() - wide.half()).abs().max().item() < 0.1 if param.numel() else True
        for name, value in optimizer.state[param].items():
            assert name == "step" or value.dtype is torch.float32


@each_backend
@each_case
def test_a_parameter_changed_by_hand_between_steps(case: Case, backend: str) -> None:
    params, copies = make_params(), make_params()
    one, two = make(case, params, backend=backend), make(case, copies, backend="reference")
    for step in range(4):
        with torch.no_grad():
            for param, other in zip(params, copies, strict=True):
                param.mul_(0.5)
                other.mul_(0.5)
        train(one, params, 1, first=step)
        train(two, copies, 1, first=step)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)


@each_backend
@each_case
def test_a_state_changed_by_hand_counts(case: Case, backend: str) -> None:
    params, copies = make_params(), make_params()
    one, two = make(case, params, backend=backend), make(case, copies, backend="reference")
    for optimizer, group in ((one, params), (two, copies)):
        train(optimizer, group, 2)
        for param in group:
            name = next(n for n in optimizer.state[param] if n != "step")
            optimizer.state[param][name] = torch.zeros_like(param)
        train(optimizer, group, 1, first=2)
        optimizer.state.clear()
        train(optimizer, group, 2, first=3)
    assert_same(tensors_of(one), tensors_of(two), rtol=1e-6, atol=1e-7)
    if case.kind.spec.counted:
        assert int(one.state[params[0]]["step"]) == 2


@each_backend
@each_case
def test_a_parameter_handed_from_one_group_to_another(case: Case, backend: str) -> None:
    """Group lists are plain lists; a script may move a parameter to a group with another rate."""
    clip = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    one, two, three = make_params([(4,), (3,), (2,)])
    groups = [{"params": [one, two], "lr": 0.1}, {"params": [three], "lr": 0.0}]
    optimizer = make(case, groups, lr=1.0, weight_decay=0.0, backend=backend, **clip)
    train(optimizer, [one, two, three], 2)
    optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    before = [p.detach().clone() for p in (one, two, three)]
    train(optimizer, [one, two, three], 1, first=2)
    moved = [not torch.equal(p, old) for p, old in zip((one, two, three), before, strict=True)]
    assert moved == [True, False, False]


@each_case
def test_another_backend_chosen_later_counts(case: Case) -> None:
    params = make_params()
    optimizer = make(case, params)
    train(optimizer, params, 3)
    optimizer.backend = "reference"
    give_grads(params, 3)
    assert {bucket.backend.name for bucket in optimizer._planner.plan()} == {"reference"}


@each_case
def test_inside_no_grad_and_after_inference(case: Case) -> None:
    params, copies = make_params(), make_params()
    one, two = make(case, params), make(case, copies)
    for step in range(2):
        give_grads(params, step)
        give_grads(copies, step)
        with torch.no_grad():
            one.step()
            assert not torch.is_grad_enabled()
        two.step()
        assert torch.is_grad_enabled()
    assert_same(tensors_of(one), tensors_of(two))
    with torch.inference_mode():
        assert optimizer_works_in_inference_mode(case)


def optimizer_works_in_inference_mode(case: Case) -> bool:
    """Ordinary parameters may be updated in inference mode, as torch.optim does."""
    with torch.inference_mode(False):
        params = make_params([(3,)])
        give_grads(params, 0)
        optimizer = make(case, params, lr=0.5)
    before = params[0].tolist()
    optimizer.step()
    first = params[0].tolist()
    with torch.inference_mode(False):
        give_grads(params, 1)
        optimizer.step()
    return before != first != params[0].tolist()


@each_backend
@each_case
def test_autograd_notices_the_change(case: Case, backend: str) -> None:
    """A step between forward and backward must not go unnoticed."""
    param = Parameter(torch.randn(5))
    optimizer = make(case, [param], lr=0.1, backend=backend)
    param.grad = torch.ones(5)
    loss = (param * param).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_backend
@each_case
def test_parameters_stay_leaves_without_graph(case: Case, backend: str) -> None:
    net = model()
    optimizer = make(case, net.parameters(), backend=backend)
    fit(net, optimizer, 2)
    for param in net.parameters():
        assert param.is_leaf and param.requires_grad and param.grad_fn is None
        for value in optimizer.state[param].values():
            assert not isinstance(value, Tensor) or not value.requires_grad


@each_case
def test_torch_compile_around_a_training_step(case: Case) -> None:
    """A graph break at the step is fine; other numbers are not."""
    results = []
    for compiled in (False, True):
        net = model()
        optimizer = make(case, net.parameters(), lr=0.05)

        def train_step(data: Tensor, net=net, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = net(data).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        torch._dynamo.reset()
        run = torch.compile(train_step, backend="eager") if compiled else train_step
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                run(torch.randn(6, 4))
        results.append(tensors_of(optimizer))
    assert_same(results[1], results[0])


@each_case
def test_add_param_group_takes_a_single_tensor_and_its_defaults(case: Case) -> None:
    one, two = make_params([(3,), (2,)])
    optimizer = make(case, [one], lr=0.25)
    optimizer.add_param_group({"params": two, "lr": 0.5})
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.5]
    assert optimizer.param_groups[1].keys() == optimizer.param_groups[0].keys()
    with pytest.raises(TypeError):
        optimizer.add_param_group([two])
