"""States in host memory: what was changed while gradients were on their way is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from offload_pairs import ADAMW, assert_same_bits, give_both, late, make_pair
from torch import Tensor

from training import params_of

pytestmark = pytest.mark.usefixtures("small_pieces")


def twice(param: Tensor) -> None:
    param.backward(torch.ones_like(param))


def edited(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(0.5)


def edited_unseen(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data.clamp_(-0.1, 0.1)


def one_element_unseen(param: Tensor) -> None:
    assert param.grad is not None
    if param.grad.numel():
        param.grad.data.view(-1)[-1:].add_(1e-3)


def signs_turned_unseen(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data.neg_()


def zeroed(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.zero_()


def replaced(param: Tensor) -> None:
    assert param.grad is not None
    param.grad = param.grad * 2


def replaced_in_place(param: Tensor) -> None:
    assert param.grad is not None
    param.grad.data = param.grad.data * 2


def removed(param: Tensor) -> None:
    param.grad = None


def parameter_edited(param: Tensor) -> None:
    param.data.mul_(0.5)


CHANGES = [
    twice,
    edited,
    edited_unseen,
    one_element_unseen,
    signs_turned_unseen,
    zeroed,
    replaced,
    replaced_in_place,
    removed,
    parameter_edited,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("slow", [False, True], ids=["done", "late"])
def test_changes_between_backward_and_step(change: Callable[[Tensor], None], slow: bool) -> None:
    away, near = make_pair(ADAMW, {"lr": 0.01})
    if slow:
        late(away)
    for number in range(3):
        give_both(away, near, number)
        for optimizer in (away, near):
            for param in params_of(optimizer)[number:]:
                change(param)
            optimizer.step()
    assert_same_bits(away, near)


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "fused"])
def test_clipping_in_place(ours: bool) -> None:
    away, near = make_pair(ADAMW, {"lr": 0.01})
    give_both(away, near, 0)
    norm = torch.nn.utils.get_total_norm([p.grad for p in params_of(near) if p.grad is not None])
    if ours:
        away.clip_grad_norm_fused_(0.5)
    else:
        torch.nn.utils.clip_grad_norm_(params_of(away), 0.5)
    away.step()
    for param in params_of(near):
        assert param.grad is not None
        param.grad.mul_(0.5 / norm)
    near.step()
    for one, two in zip(params_of(away), params_of(near), strict=True):
        torch.testing.assert_close(one.detach().cpu(), two.detach(), rtol=1e-5, atol=1e-7)


def test_gradients_that_share_memory_with_parameters() -> None:
    whole = torch.ones(12, device="npu")
    views = [torch.nn.Parameter(whole[:8]), torch.nn.Parameter(whole[4:])]
    optimizer = ADAMW.make(views, offload="cpu")
    for view in views:
        view.grad = torch.ones_like(view)
    with pytest.raises(
        RuntimeError, match=r"parameter 0 of group 0: its param shares memory.*clone"
    ):
        optimizer.step()
    assert not optimizer.state and bool((whole == 1).all())
