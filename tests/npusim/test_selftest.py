"""On a torch it does not fit, the simulated NPU says so before it changes anything."""

import sys

import pytest
import torch
from npusim_paths import Run

from ingot.npusim import selftest

BEFORE_ANY_CHANGE = """
import sys
import torch, ingot.npusim
from ingot.npusim import bridge, selftest

def refused(message):
    finders = list(sys.meta_path)
    try:
        ingot.npusim.install()
    except RuntimeError as error:
        assert message in str(error), error
    else:
        raise AssertionError("installed")
    assert sys.meta_path == finders and not ingot.npusim.is_installed()
    assert not hasattr(torch, "npu") and "torch.npu" not in sys.modules

kept = torch._C._from_dlpack
del torch._C._from_dlpack
refused(f"ingot.npusim does not fit torch {torch.__version__}: looking for private functions failed "
        "(AttributeError")
torch._C._from_dlpack = kept

kept = torch._C._to_dlpack
other = torch.ones(4)
torch._C._to_dlpack = lambda tensor: kept(other)
refused("reading a DLPack capsule failed (AssertionError: its head reads")
torch._C._to_dlpack = kept

kept = selftest.TESTED
selftest.TESTED = ()
selftest._CHILD = "import os; os.abort()"
refused("a trial in another process failed (AssertionError: exit code -6")
selftest._CHILD = "raise SystemExit('no such operator')"
refused("a trial in another process failed (AssertionError: exit code 1: no such operator")
selftest.TESTED = kept
assert torch._C._get_privateuse1_backend_name() == "privateuseone"

torch.utils.rename_privateuse1_backend("other")
refused("ingot.npusim needs torch's one place for a foreign device, and 'other' has taken it")
print("all refused")
"""
DEVICE_THAT_IS_WRONG = """
import sys
import ingot.npusim, torch
from ingot.npusim import fallback
fallback.check_same_device = lambda *args: None
try:
    ingot.npusim.install()
except RuntimeError as error:
    print(error)
assert not ingot.npusim.is_installed()
import importlib.util
assert importlib.util.find_spec("torch_npu") is None
"""
UNTESTED_VERSION = """
import ingot.npusim, torch
from ingot.npusim import selftest
selftest.TESTED = ("1.0",)
assert not selftest.is_tested()
assert ingot.npusim.install()
print(torch.ones(2).npu().sum().item())
"""


def test_refused_before_anything_changes(run: Run) -> None:
    assert run("-c", BEFORE_ANY_CHANGE).stdout == "all refused\n"


def test_a_device_that_computes_wrongly(run: Run) -> None:
    done = run("-c", DEVICE_THAT_IS_WRONG)
    assert (
        "the self-test of the device failed (AssertionError: mixing devices did not raise)"
        in done.stdout
    )


def test_a_version_nobody_tested_is_tried_in_another_process(run: Run) -> None:
    done = run("-c", UNTESTED_VERSION)
    assert done.stdout == "2.0\n"
    assert done.stderr.count("simulated") == 1  # the trial is silent


AFTER_A_BACKWARD = """
import torch
torch.ones(2, requires_grad=True).sum().backward()
import ingot.npusim
try:
    ingot.npusim.install()
except RuntimeError as error:
    assert "before the first backward()" in str(error), error
else:
    raise AssertionError("installed")
"""


def test_too_late_after_a_backward(run: Run) -> None:
    run("-c", AFTER_A_BACKWARD)


def test_this_torch_is_tested() -> None:
    assert selftest.is_tested(), f"add {torch.__version__} to selftest.TESTED once all tests pass"
    selftest.check_device()
    selftest.probe()
    with pytest.raises(RuntimeError, match="exit code 7: no message"):
        selftest.probe([sys.executable, "-c", "raise SystemExit(7)"])
