"""What a declaration can say about its states (how they start, that an update needs the old ones), and its words."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ingot.declare.options import LR
from ingot.declare.spec import Spec, State, Sums
from ingot.declare.words import sqrt
from ingot.optimizer import FusedOptimizer


class Scalars(NamedTuple):
    keep: float
    rate: float


def scalars(group: Any, step: int) -> Scalars:
    return Scalars(1.0, float(group["lr"]))


def advance(param: Any, grad: Any, delayed: Any, total: Any, s: Any) -> tuple[Any, ...]:
    return grad, total + grad * grad


def direction(param: Any, grad: Any, delayed: Any, total: Any, s: Any) -> Any:
    return delayed


class Delayed(FusedOptimizer):
    """Steps along the gradient of the step before: the update is a state as it was, and nothing else."""

    spec = Spec(
        "delayed",
        {"delayed": State(), "total": State(start=3.0, signed=False)},
        scalars,
        advance,
        direction,
        looks_back=True,
    )
    rules = {"lr": LR}

    def __init__(self, params: Any, lr: float = 0.5, **common: Any) -> None:
        super().__init__(params, {"lr": lr}, **common)


each = pytest.mark.parametrize("backend", ["reference", "lists"])


def gradients(shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for _ in range(4)]


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_old_states_and_their_start(backend: str, dtype: torch.dtype) -> None:
    """Four steps: the parameter moves along the first three gradients; the sum has begun at 3."""
    param = torch.ones(5, 2, dtype=dtype, requires_grad=True)
    optimizer = Delayed([param], backend=backend)
    grads = gradients((5, 2), dtype)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    expected = 1 - 0.5 * sum(grads[:3])
    torch.testing.assert_close(param.detach(), expected, rtol=1e-6, atol=1e-6)
    slots = optimizer.state[param]
    assert torch.equal(slots["delayed"], grads[3])
    seen, real = slots["total"], torch.stack(grads)
    if dtype.is_complex:  # two real numbers, each with a state of its own
        seen, real = torch.view_as_real(seen), torch.view_as_real(real)
    torch.testing.assert_close(seen, 3 + (real * real).sum(0), rtol=1e-6, atol=1e-6)


@each
def test_updates_do_not_see_what_was_rounded(backend: str) -> None:
    """With states in 16 bits the update is the old state as it was stored, not the new one."""
    param = torch.zeros(64, requires_grad=True)
    optimizer = Delayed([param], lr=1.0, backend=backend, state_dtype=torch.bfloat16)
    first, second = gradients((64,), torch.float32)[:2]
    for grad in (first, second):
        param.grad = grad.clone()
        optimizer.step()
    assert torch.equal(param.detach(), -first.bfloat16().float())
    assert torch.equal(optimizer.state[param]["delayed"], second.bfloat16())


def test_looking_back_takes_one_pass() -> None:
    """A second pass would have to keep the old states."""
    with pytest.raises(ValueError, match="delayed: looks_back and finish exclude each other"):
        Spec("delayed", {}, scalars, advance, direction, finish=lambda *_: (1, 1), looks_back=True)


def test_only_the_sums_asked_for() -> None:
    """Reading a sum that was not asked for is an error, not a None that spreads."""
    sums = Sums(pp=1.0, root_n=2.0)
    assert sums.pp == 1.0
    with pytest.raises(AttributeError):
        _ = sums.uu


def test_roots_are_correctly_rounded() -> None:
    """Those of torch are not, on any number of elements; how many are wrong depends on the processor."""
    x = torch.rand(100_003, generator=torch.Generator().manual_seed(0)) ** 8
    x[:4] = torch.tensor([0.0, torch.finfo(torch.float32).smallest_normal, torch.inf, torch.nan])
    wanted = torch.tensor([math.sqrt(number) for number in x.tolist()])
    torch.testing.assert_close(sqrt(x), wanted, rtol=0, atol=0, equal_nan=True)
