"""Schedulers of torch drive every optimizer as they drive those of torch.optim."""

import inspect
import math

import pytest
import torch
from torch.optim import lr_scheduler

from cases import CASES, Case, each_case
from state_types import assert_kept, each_state_dtype, enough
from training import SHAPES, assert_same, make_params, tensors_of, train, with_state

SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.25, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 2, cycle_momentum=False),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def test_every_scheduler_of_torch_is_tried() -> None:
    kinds = {
        name
        for name, kind in vars(lr_scheduler).items()
        if inspect.isclass(kind)
        and issubclass(kind, lr_scheduler.LRScheduler)
        and not name.startswith("_")
        and name != "LRScheduler"
    }
    assert kinds <= SCHEDULERS.keys(), kinds - SCHEDULERS.keys()


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*epoch parameter.*:UserWarning")
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_schedulers_as_with_torch(name: str, scheduler: str, tensor_lr: bool) -> None:
    """The scheduler drives this optimizer and torch's to the same numbers (OneCycleLR moves momentum too)."""
    case = CASES[name]
    options = {"momentum": 0.9} if name == "sgd" else {}
    ours, theirs = make_params(), make_params()
    lrs = [torch.tensor(0.02, dtype=torch.float64) if tensor_lr else 0.02 for _ in range(2)]
    optimizers = [
        case.make(ours, lr=lrs[0], **options),
        case.torch_kind(theirs, lr=lrs[1], **options, foreach=False),
    ]
    for params, optimizer in zip((ours, theirs), optimizers, strict=True):
        schedule = SCHEDULERS[scheduler](optimizer)
        for step in range(6):
            train(optimizer, params, 1, first=step)
            schedule.step(*([1.0] if scheduler == "ReduceLROnPlateau" else []))
    rates = [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
    assert math.isclose(*rates, rel_tol=1e-12)
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=2e-6, atol=1e-6)


@each_case
@each_state_dtype
@pytest.mark.parametrize("scheduler", ["CosineAnnealingLR", "OneCycleLR"])
def test_schedulers_with_every_optimizer(
    case: Case, scheduler: str, state_dtype: str | None
) -> None:
    """The rate that a scheduler sets is the rate of the step; those with betas or b1 cycle them too."""
    params, same = (make_params(enough(SHAPES, state_dtype)) for _ in range(2))
    driven, by_hand = (
        with_state(case, each, lr=0.02, state_dtype=state_dtype) for each in (params, same)
    )
    if scheduler == "OneCycleLR" and case.name == "adadelta":
        schedule = lr_scheduler.OneCycleLR(driven, 0.1, total_steps=10, cycle_momentum=False)
    else:
        schedule = SCHEDULERS[scheduler](driven)
    for step in range(5):
        for name, value in driven.param_groups[0].items():
            if name != "params":
                by_hand.param_groups[0][name] = value
        train(driven, params, 1, first=step)
        train(by_hand, same, 1, first=step)
        schedule.step()
    assert_kept(driven, state_dtype)
    assert_same(tensors_of(driven), tensors_of(by_hand))
    assert driven.param_groups[0]["lr"] != 0.02
