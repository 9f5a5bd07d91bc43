"""Options that no outside implementation has, against their formula written out in plain double precision."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cases import BACKENDS, CASES, each_backend
from training import give_grads, make_params

SHAPES = [(7,), (4, 3), (), (2, 3, 2, 2)]
STEPS = 8
Rule = Callable[[Tensor, Tensor, int, dict[str, Tensor]], Tensor]


def follows(name: str, rule: Rule, backend: str, **options: object) -> None:
    """Train in float64 and compare every step of every parameter with ``rule``."""
    params = make_params(SHAPES, torch.float64)
    plain = [param.detach().clone() for param in params]
    memory: list[dict[str, Tensor]] = [{} for _ in params]
    optimizer = CASES[name].make(params, **options, backend=backend)
    for step in range(1, STEPS + 1):
        give_grads(params, step)
        optimizer.step()
        for i, param in enumerate(params):
            assert param.grad is not None
            plain[i] = rule(plain[i], param.grad, step, memory[i])
            torch.testing.assert_close(param.detach(), plain[i], rtol=1e-13, atol=1e-14)


def moments(
    grad: Tensor, memory: dict[str, Tensor], beta1: float, beta2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Averages of the gradient and its square, and the largest of the latter so far."""
    zero = torch.zeros_like(grad)
    memory["m"] = beta1 * memory.get("m", zero) + (1 - beta1) * grad
    memory["v"] = beta2 * memory.get("v", zero) + (1 - beta2) * grad**2
    memory["top"] = torch.max(memory.get("top", zero), memory["v"])
    return memory["m"], memory["v"], memory["top"]


@each_backend
@pytest.mark.parametrize("limit", [None, 1.5])
def test_lamb_with_bias_correction(backend: str, limit: float | None) -> None:
    def rule(param: Tensor, grad: Tensor, step: int, memory: dict[str, Tensor]) -> Tensor:
        m, v, _ = moments(grad, memory, 0.8, 0.95)
        update = m / (1 - 0.8**step) / ((v / (1 - 0.95**step)).sqrt() + 1e-3) + 0.1 * param
        norm = param.norm() if limit is None else param.norm().clamp(max=limit)
        return param - 0.02 * norm / update.norm() * update

    options = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
    follows("lamb", rule, backend, **options, bias_correction=True, max_weight_norm=limit)


@each_backend
def test_lamb_without_weight_or_update(backend: str) -> None:
    """The trust ratio is 1 where a norm is 0: a zero weight starts to move, a zero update divides nothing."""
    zero, resting = (torch.nn.Parameter(torch.full((3, 2), x)) for x in (0.0, 2.0))
    optimizer = CASES["lamb"].make([zero, resting], lr=0.1, backend=backend)
    zero.grad, resting.grad = torch.full((3, 2), 0.5), torch.zeros(3, 2)
    optimizer.step()
    update = 0.1 * 0.5 / (math.sqrt(0.001) * 0.5 + 1e-6)
    torch.testing.assert_close(zero.detach(), torch.full((3, 2), -0.1 * update))
    assert torch.equal(resting.detach(), torch.full((3, 2), 2.0))


@each_backend
def test_adamp_without_weight_or_gradient(backend: str) -> None:
    """All norms are 0: eps alone stands in the denominators, and the step stays finite."""
    zero, resting = (torch.nn.Parameter(torch.full((3, 2), x)) for x in (0.0, 2.0))
    optimizer = CASES["adamp"].make([zero, resting], lr=0.1, weight_decay=0.5, backend=backend)
    zero.grad, resting.grad = torch.full((3, 2), 0.5), torch.zeros(3, 2)
    optimizer.step()
    torch.testing.assert_close(zero.detach(), torch.full((3, 2), -0.1))
    # A zero gradient is orthogonal to everything, so the decay is the reduced one.
    expected = torch.full((3, 2), 2.0 * (1 - 0.1 * 0.5 * 0.1))
    torch.testing.assert_close(resting.detach(), expected)


@each_backend
def test_adamp_with_amsgrad(backend: str) -> None:
    def rule(param: Tensor, grad: Tensor, step: int, memory: dict[str, Tensor]) -> Tensor:
        m, _, top = moments(grad, memory, 0.9, 0.5)
        update, decay = m / ((top / (1 - 0.5**step)).sqrt() + 1e-8), 0.1
        if param.ndim > 1:
            for rows in (param.shape[0], 1):
                p, g, u = (t.reshape(rows, -1) for t in (param, grad, update))
                norm = p.norm(dim=1, keepdim=True) + 1e-8
                cosine = (p * g).sum(1, keepdim=True).abs() / (g.norm(dim=1, keepdim=True) + 1e-8)
                if (cosine / norm).max() < 0.8 / math.sqrt(p.shape[1]):
                    unit = p / norm
                    update = (u - unit * (unit * u).sum(1, keepdim=True)).reshape(param.shape)
                    decay = 0.1 * 0.3
                    break
        return param * (1 - 0.02 * decay) - 0.02 / (1 - 0.9**step) * update

    options = {"lr": 0.02, "betas": (0.9, 0.5), "weight_decay": 0.1, "delta": 0.8, "wd_ratio": 0.3}
    follows("adamp", rule, backend, **options, amsgrad=True)


def after_warmup(schedule: str, x: float) -> float:
    """The schedules of the cited BERT code, for a warm-up of 0.3."""
    return {
        "warmup_linear": max((x - 1) / (0.3 - 1), 0),
        "warmup_constant": 1.0,
        "warmup_cosine": 0.5 * (1 + math.cos(math.pi * x)),
        "warmup_poly": max(1 - x, 0) ** 0.5,
    }[schedule]


@each_backend
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize(
    "schedule", ["warmup_linear", "warmup_constant", "warmup_cosine", "warmup_poly"]
)
def test_bert_adam_schedules(schedule: str, amsgrad: bool, backend: str) -> None:
    """With t_total 5, eight steps go through the warm-up and past the end."""

    def rule(param: Tensor, grad: Tensor, step: int, memory: dict[str, Tensor]) -> Tensor:
        m, v, top = moments(grad, memory, 0.9, 0.6)
        update = m / ((top if amsgrad else v).sqrt() + 1e-6) + 0.05 * param
        x = (step - 1) / 5
        return param - 0.02 * (x / 0.3 if x < 0.3 else after_warmup(schedule, x)) * update

    options = {"lr": 0.02, "warmup": 0.3, "t_total": 5, "b2": 0.6, "weight_decay": 0.05}
    options |= {"schedule": schedule, "max_grad_norm": -1}
    follows("bert_adam", rule, backend, **options, amsgrad=amsgrad)


@pytest.mark.parametrize("schedule", ["warmup_linear", "warmup_cosine", "warmup_poly"])
def test_get_lr_is_the_rate_of_the_next_step(schedule: str) -> None:
    params = make_params([(3,), (2,)])
    optimizer = CASES["bert_adam"].make(params, lr=0.02, warmup=0.3, t_total=5, schedule=schedule)
    for step in range(8):
        x = step / 5
        rate = 0.02 * (x / 0.3 if x < 0.3 else after_warmup(schedule, x))
        assert optimizer.get_lr() == pytest.approx([rate, rate], rel=1e-12, abs=1e-18)
        give_grads(params, step)
        optimizer.step()


def test_get_lr_counts_for_each_parameter() -> None:
    """A parameter that starts late is earlier in its warm-up; a group has its own schedule."""
    early, late, other = make_params([(3,), (2,), (4,)])
    groups = [{"params": [early, late]}, {"params": [other], "t_total": -1, "lr": 0.5}]
    optimizer = CASES["bert_adam"].make(groups, lr=0.02, warmup=0.5, t_total=8)
    give_grads([early, other], 0)
    optimizer.step()
    optimizer.step()
    assert optimizer.get_lr() == pytest.approx([0.02 * (2 / 8) / 0.5, 0.0, 0.5])


def test_the_backends_are_the_ones_of_the_table() -> None:
    assert {"reference", "lists"} <= set(BACKENDS)
