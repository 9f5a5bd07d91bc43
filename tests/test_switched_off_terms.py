"""A term that an option switches off is not computed: 0 * inf would be NaN."""

import math

import pytest
import torch
from torch import Tensor

from cases import Case, Options, each_backend, each_setting

NORMS = ("max_weight_norm",)  # without this limit the trust ratio is the infinite norm itself


def three_steps(case: Case, options: Options, backend: str, first: float) -> Tensor:
    """A matrix whose first entry is ``first``, after three steps without weight decay."""
    generator = torch.Generator().manual_seed(3)
    param = torch.randn(4, 5, generator=generator)
    param[0, 0] = first
    param.requires_grad_()
    options = {name: value for name, value in options.items() if name not in NORMS}
    optimizer = case.make([param], **{**options, "weight_decay": 0}, backend=backend)
    for _ in range(3):
        param.grad = torch.randn(4, 5, generator=generator)
        optimizer.step()
    return param.detach()


@each_setting
@each_backend
@pytest.mark.parametrize("infinity", [math.inf, -math.inf], ids=str)
def test_without_decay_an_infinite_parameter_stays(
    case: Case, options: Options, backend: str, infinity: float
) -> None:
    """As in torch.optim; its neighbours go on as if it were an ordinary number."""
    param = three_steps(case, options, backend, infinity)
    assert param[0, 0] == infinity
    assert bool(param.flatten()[1:].isfinite().all())
    if case.kind.spec.finish is None:
        ordinary = three_steps(case, options, backend, 1.0)
        assert torch.equal(param.flatten()[1:], ordinary.flatten()[1:])
