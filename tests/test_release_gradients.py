"""The step inside backward: the same bits as normal steps, whatever gets a gradient, by whatever way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from cases import Case, each_backend, each_case, each_setting
from releasing import SHAPES, adamw, backward, make, train
from training import assert_same, make_params, tensors_of, through_a_file

PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float64": (torch.float64, {}),
    "complex": (torch.complex64, {}),
    "bfloat16": (torch.bfloat16, {}),
    "float16 states": (torch.float32, {"state_dtype": torch.float16}),
    "masters": (torch.bfloat16, {"master_weights": True}),
    "stochastic": (torch.bfloat16, {"rounding": "stochastic", "state_dtype": "param"}),
    "8 bits": (torch.float32, {"state_dtype": "8bit"}),
    "maximize": (torch.float32, {"maximize": True}),
}


def compare(case: Case, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES, dtype)
        optimizer = make(case, params, **options)
        if released:
            optimizer.release_gradients()
        train(optimizer, params)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@each_setting
def test_the_same_bits_as_normal_steps(case: Case, options: dict[str, Any]) -> None:
    compare(case, options)


@each_case
@each_backend
def test_on_every_backend(case: Case, backend: str) -> None:
    compare(case, {"backend": backend})


@each_case
@pytest.mark.parametrize("precision", PRECISIONS)
def test_in_every_precision(case: Case, precision: str) -> None:
    dtype, options = PRECISIONS[precision]
    compare(case, options, dtype)


@each_case
def test_parameters_that_get_no_gradient_are_left_alone(case: Case) -> None:
    missing = [(), (0, 4), (1,), (), (4, 8), ()]
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        params[5].requires_grad_(False)
        optimizer = make(case, params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, without=lambda step: (*missing[step], 5))
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


class Net(nn.Module):
    """One matrix used twice, and layers small and large."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 1100), nn.Tanh(), nn.Linear(1100, 16)) for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + (
                layer(x)
                if self.reentrant is None
                else checkpoint(layer, x, use_reentrant=self.reentrant)
            )
        return nn.functional.linear(x, self.embed.weight).logsumexp(-1).mean()


def train_net(net: nn.Module, optimizer: Any, steps: int = 5, scheduler: Any = None) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randint(40, (8,), generator=generator))
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@each_case
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_a_network_with_tied_weights_and_a_schedule(case: Case, reentrant: bool | None) -> None:
    runs = []
    for released in (False, True):
        net = Net(reentrant)
        optimizer = make(case, net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        if released:
            optimizer.release_gradients()
        losses = train_net(net, optimizer, scheduler=scheduler)
        runs.append({**tensors_of(optimizer), "losses": torch.tensor(losses)})
    assert_same(*runs)


def test_the_quick_path_is_taken() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params, backend="native")
    handle = optimizer.release_gradients()
    train(optimizer, params, 4)
    parcels = {id(parcel): parcel for parcel in handle._parcels.values()}.values()
    assert len(parcels) == 3
    assert all(parcel.quick is not None for parcel in parcels)


def test_losses_with_parameters_of_their_own_may_go_backward_one_by_one() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        for step in range(4):
            optimizer.zero_grad()
            backward(params, step, without=range(4))
            backward(params, step, without=range(4, len(params)))
            optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_step_updates_gradients_that_were_set_by_hand() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        for step in range(3):
            optimizer.zero_grad()
            backward(params, step, without=(0, 4))
            params[0].grad, params[4].grad = torch.ones(7), torch.ones(130, 127)
            optimizer.step()
            assert not released or all(param.grad is None for param in params)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_parameters_replaced_unfrozen_moved_and_added_on_the_way() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        params[1].requires_grad_(False)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, 3, without=lambda _: (1,))
        params[1].requires_grad_(True)
        params[4].data = params[4].data.t().contiguous().t()
        params[6] = Parameter(torch.ones(5, 5))
        optimizer.param_groups[0]["params"][6] = params[6]
        # Those without a hook yet are updated by step().
        optimizer.zero_grad()
        backward(params, 10)
        optimizer.step()
        params.append(Parameter(torch.ones(200, 100)))
        optimizer.add_param_group({"params": [params[-1]], "lr": 0.5})
        train(optimizer, params, 4, first=20)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@each_case
def test_states_are_saved_and_loaded(case: Case) -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = make(case, params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, 4)
        saved = through_a_file(optimizer.state_dict())
        train(optimizer, params, 2, first=4)
        optimizer.load_state_dict(saved)
        train(optimizer, params, 4, first=6)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_closures_and_hooks_on_steps() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    optimizer.release_gradients()
    calls: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append([p.grad for p in params]))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> int:
        optimizer.zero_grad()
        backward(params, len(calls))
        return 5

    assert [optimizer.step(closure) for _ in range(3)] == [5] * 3
    assert calls == [[None] * len(params), "after"] * 3
    assert [int(optimizer.state[p]["step"]) for p in params] == [3] * len(params)
