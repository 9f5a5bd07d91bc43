"""Finds out whether the simulated NPU fits the torch at hand, before and after it is installed.

The simulation leans on private parts of torch. Where they have changed, the outcome should be a
sentence, not a segmentation fault in somebody's training script.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

TESTED = ("2.10", "2.13", "2.15")  # the whole suite was run with these; others are tried out first

_CHILD = "from ingot.npusim import register; register.install(probe=True)"


@contextmanager
def explained(step: str) -> Iterator[None]:
    """Turns any exception inside into one that says what does not fit what."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"ingot.npusim does not fit torch {torch.__version__}: {step} failed "
            f"({type(error).__name__}: {error}). It is tested with torch {', '.join(TESTED)}."
        ) from error


def check_torch() -> None:
    """Checks, without changing torch, that what the simulation needs is there and as expected."""
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise RuntimeError(
            f"ingot.npusim needs torch's one place for a foreign device, and {name!r} has taken it"
        )
    with explained("looking for private functions"):
        for parent, attribute in (
            (torch._C, "_from_dlpack"),
            (torch._C, "_ExcludeDispatchKeyGuard"),
            (torch._C._acc, "register_python_privateuseone_hook"),
            (torch._C._acc, "register_python_privateuseone_device_guard"),
            (torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
            (torch.library.Library, "fallback"),
        ):
            getattr(parent, attribute)
    with explained("reading a DLPack capsule"):
        from ingot.npusim.bridge import capsule_head

        tensor = torch.arange(4.0)
        _capsule, head = capsule_head(tensor)
        seen = (head.data, head.device.device_type, head.device.device_id)
        _expect(seen == (tensor.data_ptr(), 1, 0), f"its head reads {seen}")


def is_tested() -> bool:
    """Tells whether this torch is one the test suite has run with."""
    return ".".join(torch.__version__.split(".")[:2]) in TESTED


def probe(command: list[str] | None = None) -> None:
    """Installs and tests the device in another process first, where a crash does no harm.

    Args:
        command: what to run instead, for tests.
    """
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or "." for path in sys.path))
    environment.pop("INGOT_NPUSIM", None)  # the child would ask a child of its own
    with explained("a trial in another process"):
        child = subprocess.run(
            command or [sys.executable, "-c", _CHILD],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        last_line = (child.stderr.strip().splitlines() or ["no message"])[-1]
        _expect(child.returncode == 0, f"exit code {child.returncode}: {last_line}")


def check_device() -> None:
    """Checks on the installed device that a few operators of each kind give what the CPU gives."""
    with explained("the self-test of the device"):
        _check_memory()
        _check_autocast()
        _check_mixing()
    # While torch is being imported (the way of INGOT_NPUSIM), backward would wait for ever: its
    # thread imports torch, and the import waits for the thread (torch 2.13).
    if getattr(torch.__spec__, "_initializing", False):
        return
    try:
        with explained("the self-test of the device"):
            _check_autograd()
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        raise RuntimeError(
            "ingot.npusim: a backward pass has already run in this process, and torch's autograd only "
            "knows the devices there were then; ask for the simulated NPU before the first backward()"
        ) from None


def _check_memory() -> None:
    host = torch.arange(6.0).reshape(2, 3)
    tensor = host.to("npu")
    _expect(tensor.device == torch.device("npu", 0), f"the device is {tensor.device}")
    tensor[1].mul_(2.0)
    tensor.t()[0].add_(1.0)
    host[1].mul_(2.0)
    host.t()[0].add_(1.0)
    _expect(tensor.cpu().equal(host), "views and copies differ from the CPU's")
    _expect(tensor.resize_(8)[:6].cpu().equal(host.flatten()), "resizing lost elements")


def _check_autograd() -> None:
    def run(device: str) -> list[torch.Tensor]:
        image = torch.linspace(-1, 1, 32, device=device).reshape(2, 1, 4, 4)
        kernel = torch.linspace(-1, 1, 9, device=device).reshape(1, 1, 3, 3).requires_grad_()
        weight = torch.linspace(0, 1, 12, device=device).reshape(3, 4).requires_grad_()
        out = torch.nn.functional.conv2d(image, kernel).flatten(1) @ weight.t()
        out.log_softmax(1)[:, 0].mean().backward()
        return [grad.cpu() for t in (kernel, weight) if (grad := t.grad) is not None]

    for ours, expected in zip(run("npu"), run("cpu"), strict=True):
        _expect(torch.allclose(ours, expected), f"gradients are {ours}, not {expected}")


def _check_autocast() -> None:
    ones = torch.ones(2, 2, device="npu")
    with torch.autocast("npu", dtype=torch.float16):
        product, total = ones @ ones, (ones @ ones).sum()
    _expect(product.dtype == torch.float16, f"autocast multiplied in {product.dtype}")
    _expect((total.dtype, total.item()) == (torch.float32, 8.0), f"autocast summed up {total}")


def _check_mixing() -> None:
    mixed: list[Callable[[], torch.Tensor]] = [
        lambda: torch.ones(2, device="npu") + torch.ones(2),
        lambda: torch.ones(2, 2, device="npu") @ torch.ones(2, 2),
    ]
    for operation in mixed:
        try:
            operation()
        except RuntimeError as error:
            _expect("same device" in str(error), f"mixing devices said: {error}")
        else:
            raise AssertionError("mixing devices did not raise")


def _expect(condition: bool, otherwise: str) -> None:
    # Not an assert statement: those vanish under `python -O`.
    if not condition:
        raise AssertionError(otherwise)
