"""What BertAdam and LAMB of torch_npu.optim were seen to get wrong, one test per finding."""

import io
import math

import pytest
import torch

from cases import CASES, each_backend
from training import make_params, train


@each_backend
def test_bert_adam_saves_its_step(backend: str) -> None:
    """With a step of 0 in the checkpoint, the warm-up would start again."""
    params = make_params()
    options = {"warmup": 0.5, "t_total": 10, "lr": 0.1}
    optimizer = CASES["bert_adam"].make(params, **options, backend=backend)
    train(optimizer, params, 4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert [int(state["step"]) for state in saved["state"].values()] == [4] * len(params)
    resumed = CASES["bert_adam"].make(make_params(), **options, backend=backend)
    resumed.load_state_dict(saved)
    assert resumed.get_lr() == optimizer.get_lr() == pytest.approx([0.1 * 0.4 / 0.5] * len(params))


@each_backend
@pytest.mark.parametrize("schedule", ["warmup_cosine", "warmup_poly"])
def test_bert_adam_schedules_past_the_end(schedule: str, backend: str) -> None:
    """warmup_cosine raised TypeError, warmup_poly gave a complex rate past t_total."""
    params = make_params([(3,)])
    options = {"warmup": 0.2, "t_total": 5, "schedule": schedule}
    optimizer = CASES["bert_adam"].make(params, **options, backend=backend)
    train(optimizer, params, 9)
    (rate,) = optimizer.get_lr()
    cosine = 1e-3 * (1 + math.cos(math.pi * 9 / 5)) / 2
    assert rate == pytest.approx(cosine if schedule == "warmup_cosine" else 0.0)
    assert torch.isfinite(params[0]).all()


@each_backend
def test_bert_adam_max_grad_norm_per_group(backend: str) -> None:
    one, two = make_params([(4,), (4,)])
    two.data.copy_(one.data)
    groups = [{"params": [one], "max_grad_norm": 0.1}, {"params": [two], "max_grad_norm": -1}]
    optimizer = CASES["bert_adam"].make(groups, backend=backend)
    for param in (one, two):
        param.grad = torch.full((4,), 3.0)
    optimizer.step()
    assert optimizer.state[one]["exp_avg"].norm().item() == pytest.approx(0.1 * 0.1, rel=1e-5)
    assert optimizer.state[two]["exp_avg"].norm().item() == pytest.approx(0.1 * 6.0, rel=1e-5)


@each_backend
def test_bert_adam_without_warmup_starts_at_the_full_rate(backend: str) -> None:
    """warmup=-1 put into the linear formula as it is gives half of it."""
    params = make_params([(3,)])
    optimizer = CASES["bert_adam"].make(params, lr=0.5, t_total=10, backend=backend)
    assert optimizer.get_lr() == [0.5]
    before = params[0].detach().clone()
    params[0].grad = torch.full((3,), 0.01)
    optimizer.step()
    update = 0.1 * 0.01 / (math.sqrt(0.001) * 0.01 + 1e-6) + 0.01 * before
    torch.testing.assert_close(params[0].detach(), before - 0.5 * update)


@each_backend
def test_lamb_global_norm_works(backend: str) -> None:
    """It raised AttributeError; test_clip compares its numbers."""
    params = make_params()
    optimizer = CASES["lamb"].make(params, use_global_grad_norm=True, backend=backend)
    train(optimizer, params, 1)
    total = torch.stack([p.grad.norm() for p in params]).norm()
    assert total > 1
    torch.testing.assert_close(optimizer.state[params[0]]["exp_avg"], 0.1 * params[0].grad / total)
