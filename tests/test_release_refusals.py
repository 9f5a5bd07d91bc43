"""What the step inside backward refuses: norms of all gradients, scalers, gradients and parameters that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from releasing import adamw, backward
from training import fit, make_params, small_model


def test_what_needs_all_gradients_is_refused() -> None:
    from ingot import SGD, AdamW, BertAdam, Lamb

    param = Parameter(torch.ones(3))
    for optimizer, option in (
        (AdamW([param], max_grad_norm=1.0), "max_grad_norm=1.0 of group 0"),
        (SGD([param], lr=0.1, max_grad_norm=0.5), "max_grad_norm=0.5 of group 0"),
        (BertAdam([param]), "max_grad_norm=1.0 of group 0"),
        (Lamb([param], use_global_grad_norm=True), "use_global_grad_norm=True of group 0"),
    ):
        with pytest.raises(ValueError, match=f"{option} needs the norm of all gradients"):
            optimizer.release_gradients()
        assert optimizer._released is None and not param._post_accumulate_grad_hooks

    optimizer = AdamW([param])
    handle = optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="clip_grad_norm_fused_ needs the norm of all gradients"):
        optimizer.clip_grad_norm_fused_(1.0)
    with pytest.raises(ValueError, match="max_grad_norm=2 of group 1 needs"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(2))], "max_grad_norm": 2})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["max_grad_norm"] = 3.0
    with pytest.raises(ValueError, match=r"max_grad_norm=3\.0 of group 0 needs"):
        param.sum().backward()
    assert torch.equal(param, torch.ones(3))
    handle.remove()


def test_gradients_and_parameters_that_cannot_be_released_are_refused() -> None:
    param = Parameter(torch.ones(3))
    optimizer = adamw([("w", param)])
    param.grad = torch.ones(3)
    with pytest.raises(
        RuntimeError, match=r"parameter 0 'w' of group 0: it has a gradient already"
    ):
        optimizer.release_gradients()
    optimizer.zero_grad()
    optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        (param * param).sum().backward(create_graph=True)
    assert torch.equal(param, torch.ones(3))

    other = Parameter(torch.ones(3))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        twice = adamw([other, other])
    with pytest.raises(ValueError, match="parameter 1 of group 0: it stands in the list twice"):
        twice.release_gradients()


@pytest.mark.parametrize("used", ["before", "after"])
def test_a_grad_scaler_is_refused_before_anything_is_updated(used: str) -> None:
    param = Parameter(torch.ones(3))
    optimizer = adamw([param])
    scaler = torch.amp.GradScaler("cpu")
    if used == "before":
        scaler.scale(torch.ones(()))
        with pytest.raises(RuntimeError, match="a GradScaler is in use"):
            optimizer.release_gradients()
        assert optimizer._released is None
        return
    optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="a GradScaler is in use"):
        scaler.scale(param.sum()).backward()
    with pytest.raises(RuntimeError, match="a GradScaler is in use"):
        scaler.step(optimizer)
    assert torch.equal(param, torch.ones(3)) and not optimizer.state
    assert "found_inf" not in vars(optimizer)


def test_a_scaler_that_nobody_has_any_more_does_not_matter() -> None:
    scaler: Any = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.itself = scaler
    del scaler
    net = small_model()
    optimizer = adamw(net.parameters())
    with optimizer.release_gradients():
        fit(net, optimizer)


def test_a_scaler_that_is_switched_off_does_not_matter() -> None:
    net = small_model()
    optimizer = adamw(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(torch.ones(()))
    with optimizer.release_gradients():
        fit(net, optimizer)


def test_a_parameter_of_two_optimizers_is_released_by_one() -> None:
    """The first would use the gradient up, and the other would make no update without a word."""
    params = make_params([(4, 4), (3,)])
    one, two = adamw(params), adamw(params[1:])
    handle = one.release_gradients()
    with pytest.raises(RuntimeError, match=r"another optimizer releases.*shape \(3,\)"):
        two.release_gradients()
    assert two._released is None
    handle.remove()
    with two.release_gradients():
        backward(params, 0)
    assert params[0].grad is not None and params[1].grad is None


def test_a_gradient_that_a_hook_took_is_not_called_updated() -> None:
    params = make_params([(130, 127), (3,)])
    before = params[0].detach().clone()

    def take(param: Tensor) -> None:
        param.grad = None

    params[0].register_post_accumulate_grad_hook(take)
    optimizer = adamw(params)
    with optimizer.release_gradients() as handle:
        backward(params, 0)
        assert handle.updated == ["parameter 1 of group 0"]
        optimizer.step()
    assert torch.equal(params[0], before) and params[0] not in optimizer.state
