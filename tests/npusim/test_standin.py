"""The stand-in for torch_npu: what it has, and what it says about what it has not."""

import importlib.util

import pytest
import torch

import ingot.optim


def test_modules_are_one_and_the_same() -> None:
    import torch.npu
    import torch_npu
    import torch_npu.npu.amp
    import torch_npu.optim
    from torch_npu.npu import amp

    assert torch.npu is torch_npu.npu
    assert torch.npu.amp is amp is torch_npu.npu.amp
    assert torch_npu.__version__ == torch.__version__.split("+")[0] + "+ingot.npusim"
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None and spec.origin == "ingot.npusim"


def test_optimizers_are_ours() -> None:
    import torch_npu.optim

    for name in ingot.optim.__all__:
        assert getattr(torch_npu.optim, name) is getattr(ingot.optim, name)
        assert name in dir(torch_npu.optim)
    names: dict[str, object] = {}
    exec("from torch_npu.optim import *", names)
    assert set(ingot.optim.__all__) <= set(names)


def test_basics() -> None:
    import torch_npu

    npu = torch_npu.npu
    assert npu.is_available() and npu.is_initialized() and npu.is_bf16_supported()
    assert (npu.device_count(), npu.current_device()) == (1, 0)
    for device in (0, "npu", "npu:0", torch.device("npu", 0)):
        npu.set_device(device)
        npu.synchronize(device)
        assert "simulated" in npu.get_device_name(device)
        with npu.device(device):
            assert torch.ones(1, device="npu").item() == 1
    npu.synchronize()
    npu.empty_cache()
    npu.set_compile_mode(jit_compile=False)
    npu.manual_seed(7)
    assert npu.initial_seed() == 7
    states = npu.get_rng_state_all()
    first = torch.rand(2, device="npu")
    npu.set_rng_state_all(states)
    assert torch.rand(2, device="npu").equal(first)
    assert torch.get_device_module("npu") is npu


@pytest.mark.parametrize("function", ["set_device", "synchronize", "get_device_name", "device"])
def test_basics_refuse_other_devices(function: str) -> None:
    with pytest.raises(RuntimeError, match="has 1 device"):
        getattr(torch.npu, function)(1)
    with pytest.raises(ValueError, match="expected an npu device"):
        getattr(torch.npu, function)("cpu")


@pytest.mark.parametrize(
    "module",
    ["torch_npu", "torch_npu.npu", "torch_npu.npu.amp", "torch_npu.optim", "torch_npu.contrib"],
)
def test_missing_names_say_that_it_is_simulated(module: str) -> None:
    message = (
        f"module '{module}' is simulated by ingot.npusim and has no 'missing_name'; "
        "`python -m ingot.npusim --help` lists what is simulated"
    )
    loaded = importlib.import_module(module)
    with pytest.raises(AttributeError, match=message):
        _ = loaded.missing_name
    assert not hasattr(loaded, "missing_name")
    for statement in (f"from {module} import missing_name", f"import {module}.missing_name"):
        with pytest.raises(ModuleNotFoundError, match=message):
            exec(statement)


def test_other_modules_are_left_to_python() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'torch_npu_extras'"):
        importlib.import_module("torch_npu_extras")


def test_custom_function_in_mixed_precision() -> None:
    from torch_npu.npu.amp import autocast, custom_bwd, custom_fwd

    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float16)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            assert x.dtype == torch.float16 and not torch.is_autocast_enabled("npu")
            return x * 2

        @staticmethod
        @custom_bwd
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad * 2

    x = torch.ones(3, device="npu", requires_grad=True)
    with autocast():
        y = Double.apply(x)
    y.float().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0, 2.0]
