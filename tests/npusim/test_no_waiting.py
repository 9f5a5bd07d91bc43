"""A step on an accelerator never asks the device for a number: also with a learning rate that is a tensor there."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cases import Case, each_case
from ingot.backends import triton
from training import assert_same, give_grads, make_params, tensors_of


class Unasked(TorchDispatchMode):
    """Fails where the host would wait for the device: to read a number, or to find out how many there are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = "_local_scalar_dense" in str(func) or "nonzero" in str(func)
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        assert not (waits and any(t.device.type != "cpu" for t in tensors)), f"{func} waits"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fake_triton() -> Iterator[None]:
    pytest.importorskip("triton")
    import fake_triton

    with pytest.MonkeyPatch.context() as patch:
        fake_triton.install(patch, "npu")
        yield
    fake_triton.forget()


def on_npu(case: Case, backend: str | None, lr: Any, **options: Any) -> Any:
    """An optimizer whose parameters are on the simulated NPU, after its first step."""
    params = [p.detach().to("npu").requires_grad_() for p in make_params([(7,), (4, 3), (33, 31)])]
    optimizer = case.make(params, lr=lr, backend=backend, **options)
    step(optimizer, params, 0)
    return optimizer


def step(optimizer: Any, params: Any, number: int) -> None:
    twins = make_params([tuple(p.shape) for p in params])
    give_grads(twins, number)
    for param, twin in zip(params, twins, strict=True):
        param.grad = twin.grad.to("npu")
    optimizer.step()


@each_case
def test_triton_never_waits(case: Case, fake_triton: None) -> None:
    """Nothing is launched here; the host does everything it does otherwise."""
    optimizer = on_npu(case, "triton", torch.tensor(0.01, device="npu"), max_grad_norm=1.0)
    with Unasked():
        optimizer.step()
        optimizer.param_groups[0]["lr"].mul_(0.5)
        optimizer.step()
    assert triton.TRITON.runs_on(torch.device("npu", 0))


@pytest.mark.parametrize("backend", ["lists", "reference"])
@each_case
def test_a_rate_on_the_device_is_used_there(case: Case, backend: str) -> None:
    """As it is at the time of the step, and with the numbers of a float."""
    runs = []
    for tensor in (False, True):
        lr = torch.tensor(0.01, device="npu") if tensor else 0.01
        optimizer = on_npu(case, backend, lr)
        for number in (1, 2):
            if tensor:
                optimizer.param_groups[0]["lr"].fill_(0.01 / (1 + number))
            else:
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
            with Unasked():
                step(optimizer, optimizer.all_params(), number)
        runs.append({name: value.cpu() for name, value in tensors_of(optimizer).items()})
    assert_same(*runs, 1e-6, 1e-7)


def test_what_forbids_waiting_can_fail() -> None:
    number = torch.tensor(1.0, device="npu")
    with pytest.raises(AssertionError, match="waits"), Unasked():
        float(number)
