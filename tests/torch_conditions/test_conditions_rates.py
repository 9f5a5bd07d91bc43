"""PyTorch's conditions: rates as tensors of any shape with one element, and every learning rate scheduler."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from conditions import SCHEDULERS, build, each_info, problem, train
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.testing._internal.common_optimizers import OptimizerInfo

from cases import each_backend
from training import assert_same, tensors_of


@each_info
@each_backend
@pytest.mark.parametrize("dimensions", [0, 1, 2])
def test_a_rate_of_one_element(info: OptimizerInfo, backend: str, dimensions: int) -> None:
    """As a tensor it does what the number does, stays the same tensor, and counts when it is changed in place."""
    rate = torch.full((1,) * dimensions, 0.25, dtype=torch.float64)
    given, twins = problem(), problem()
    one = build(info, [*given[:2]], lr=0.25, backend=backend)
    options = {**one.defaults, "lr": rate}
    if "b1" in options:
        del options["betas"]  # the other spelling of b1 and b2; only one may be given
    other = info.optim_cls([*twins[:2]], **options, backend=backend)
    assert other.param_groups[0]["lr"] is rate
    for value in (0.25, 0.125, 0.0):
        rate.fill_(value)
        one.param_groups[0]["lr"] = value
        train(one, *given, steps=2)
        train(other, *twins, steps=2)
        assert_same(tensors_of(other), tensors_of(one))
    assert other.param_groups[0]["lr"] is rate


@each_info
@pytest.mark.parametrize("dimensions", [0, 1])
def test_schedulers_write_into_a_tensor(info: OptimizerInfo, dimensions: int) -> None:
    """The tensor is kept, so whoever holds it sees the new rate; its state goes through a checkpoint."""
    rate = torch.full((1,) * dimensions, 0.5)
    weight, bias, data = problem()
    optimizer = build(info, [weight, bias], lr=rate)
    group = optimizer.param_groups[0]
    held = group["lr"]
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for expected in (0.25, 0.125):
        train(optimizer, weight, bias, data)
        scheduler.step()
        assert group["lr"] is held and held.item() == expected and held.shape == rate.shape
    saved = optimizer.state_dict()
    assert isinstance(saved["param_groups"][0]["lr"], Tensor)
    optimizer.load_state_dict(saved)
    assert float(optimizer.param_groups[0]["lr"]) == 0.125


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether there is something for OneCycleLR and CyclicLR to change beside the rate; Adadelta has nothing."""
    return any(name in optimizer.defaults for name in ("momentum", "betas", "b1"))


# Every scheduler of torch.optim.lr_scheduler.
SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], gamma=0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.4, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.4, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=10.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(
        o, base_lr=0.001, max_lr=0.1, step_size_up=3, cycle_momentum=has_momentum(o)
    ),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=0.1, total_steps=10, cycle_momentum=has_momentum(o)
    ),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=4, power=2.0),
}


def test_no_scheduler_is_missing() -> None:
    assert {*SCHEDULES} == {*lr_scheduler.__all__} - {"LRScheduler"}


def schedule(optimizer: Optimizer, scheduler: Any, tensors: Any, steps: int = 6) -> list[float]:
    """Train with a scheduler; the rates."""
    rates = []
    for _ in range(steps):
        (loss,) = train(optimizer, *tensors)
        plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        scheduler.step(loss) if plateau else scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


@each_info
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_scheduler(info: OptimizerInfo, name: str) -> None:
    """The same rates as with torch's own optimizer; the state of the scheduler goes on where it was."""
    given, theirs = problem(), problem()
    ours = build(info, [*given[:2]], lr=0.01)
    other = torch.optim.SGD([*theirs[:2]], lr=0.01, momentum=0.9)  # rates depend on no optimizer
    schedulers = [SCHEDULES[name](ours), SCHEDULES[name](other)]
    rates = schedule(ours, schedulers[0], given)
    if name != "ReduceLROnPlateau":  # it depends on the losses, which are not the same
        assert rates == schedule(other, schedulers[1], theirs)
    assert len(set(rates)) > 1
    saved = deepcopy((schedulers[0].state_dict(), ours.state_dict(), [t.detach() for t in given]))
    again = schedule(ours, schedulers[0], given, 3)
    copies = [torch.nn.Parameter(saved[2][0]), torch.nn.Parameter(saved[2][1]), given[2]]
    fresh = build(info, copies[:2], lr=0.01)
    scheduler = SCHEDULES[name](fresh)
    fresh.load_state_dict(saved[1])
    scheduler.load_state_dict(saved[0])
    assert schedule(fresh, scheduler, copies, 3) == again
    assert_same(tensors_of(fresh), tensors_of(ours))


@each_info
@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_cycled_momentum_is_what_the_step_uses(info: OptimizerInfo, name: str) -> None:
    """These two change beta1 or the momentum as well, and the next step computes with the new value."""
    given, twins = problem(), problem()
    cycled = build(info, [*given[:2]], lr=0.01)
    plain = build(info, [*twins[:2]], lr=0.01)
    if not has_momentum(cycled):
        pytest.skip("it has no momentum")
    scheduler = SCHEDULES[name](cycled)
    seen = set()
    for _ in range(5):
        group = cycled.param_groups[0]
        for option, value in group.items():
            if option != "params":
                plain.param_groups[0][option] = value
        seen.add(group["betas"][0] if "betas" in group else group["momentum"])
        train(cycled, *given)
        train(plain, *twins)
        assert_same(tensors_of(cycled), tensors_of(plain))
        scheduler.step()
    assert len(seen) > 2


@each_info
@pytest.mark.parametrize("number", range(len(SCHEDULERS)))
@pytest.mark.parametrize("contiguous", [True, False])
def test_goes_the_right_direction_with_torchs_own_choice_of_schedulers(
    info: OptimizerInfo, number: int, contiguous: bool
) -> None:
    """The loss of a least-squares problem falls; with ``maximize`` it rises."""
    for maximize in (False, True):
        tensors = problem(contiguous, torch.float64)
        start = [tensor.detach().clone() for tensor in tensors[:2]]
        optimizer = build(info, [*tensors[:2]], lr=0.001, maximize=maximize)
        schedulers = [make(optimizer) for make in SCHEDULERS[number]]
        losses = []
        for _ in range(20):
            losses += train(optimizer, *tensors)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(losses[-1]) if plateau else scheduler.step()
        assert (losses[-1] > losses[0]) if maximize else (losses[-1] < losses[0])
        assert all(not torch.equal(a, b) for a, b in zip(start, tensors[:2], strict=True))
