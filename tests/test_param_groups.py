"""Parameters and groups of parameters, as users of torch.optim hand them over."""

import pytest
import torch
from torch import Tensor, nn

from cases import Case, each_backend, each_case
from training import (
    assert_same,
    assert_unchanged,
    fit,
    give_grads,
    make_params,
    picture,
    small_model,
    tensors_of,
    train,
    with_state,
)


@each_backend
@each_case
def test_groups_have_their_own_options(case: Case, backend: str) -> None:
    """Each group computes what an optimizer of its own would."""
    clip = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    params, copies = make_params([(4,), (3, 2)]), make_params([(4,), (3, 2)])
    options = [{"lr": 0.3, "weight_decay": 0.0}, {"lr": 0.01, "weight_decay": 0.5}]
    groups = [{"params": [p], **o} for p, o in zip(params, options, strict=True)]
    together = with_state(case, groups, lr=0.5, backend=backend, **clip)
    apart = [
        with_state(case, [p], **o, backend=backend, **clip)
        for p, o in zip(copies, options, strict=True)
    ]
    for step in range(3):
        give_grads(params, step)
        give_grads(copies, step)
        together.step()
        for optimizer in apart:
            optimizer.step()
    for one, two in zip(params, copies, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


@each_case
def test_named_parameters(case: Case) -> None:
    net, twin = small_model(), small_model()
    named, plain = with_state(case, net.named_parameters()), with_state(case, twin.parameters())
    assert fit(net, named) == fit(twin, plain)
    assert named.param_groups[0]["param_names"] == [name for name, _ in net.named_parameters()]
    resumed = with_state(case, small_model().named_parameters())
    resumed.load_state_dict(named.state_dict())
    assert resumed.param_groups[0]["param_names"] == named.param_groups[0]["param_names"]


@each_case
def test_frozen_parameters(case: Case) -> None:
    net = small_model()
    net[0].requires_grad_(False)
    frozen = [p.detach().clone() for p in net[0].parameters()]
    fit(net, with_state(case, net.parameters(), lr=0.1))
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
    optimizer = with_state(case, [one])
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
    optimizer = with_state(case, net.parameters())
    fit(net, optimizer, 2)
    assert len(optimizer.state) == 1
    if case.kind.spec.counted:
        assert int(optimizer.state[net.one.weight]["step"]) == 2


@each_backend
@each_case
def test_two_optimizers_do_not_disturb_each_other(case: Case, backend: str) -> None:
    """The same shapes in the same process: nothing that a backend keeps may be shared."""
    sets = [make_params(seed=seed) for seed in (0, 1)]
    pair = [with_state(case, params, lr=0.1, backend=backend) for params in sets]
    for step in range(3):
        for number, (optimizer, params) in enumerate(zip(pair, sets, strict=True)):
            train(optimizer, params, 1, first=10 * number + step)
    for number in range(2):
        params = make_params(seed=number)
        alone = with_state(case, params, lr=0.1, backend=backend)
        train(alone, params, 3, first=10 * number)
        assert_same(tensors_of(pair[number]), tensors_of(alone))


@each_case
def test_add_param_group_takes_a_single_tensor_and_its_defaults(case: Case) -> None:
    one, two = make_params([(3,), (2,)])
    optimizer = with_state(case, [one], lr=0.25)
    optimizer.add_param_group({"params": two, "lr": 0.5})
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.5]
    assert optimizer.param_groups[1].keys() == optimizer.param_groups[0].keys()
    with pytest.raises(TypeError):
        optimizer.add_param_group([two])
