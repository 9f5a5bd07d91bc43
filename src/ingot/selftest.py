"""`python -m ingot.selftest --device cuda`: two minutes on your hardware, a report to paste into an issue.

Every optimizer on every backend that takes the device: the parameters and states of some steps against those of the
reference backend, the same bits when a step is repeated, and the time of a step beside torch's own. A backend may
decline a case that is not for it; one that cannot compile its kernels, or declines plain float32, has failed.
"""

from __future__ import annotations

import argparse
import platform
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

import ingot
from ingot import backends
from ingot.optim import NpuFusedAdamP, NpuFusedAdamW, NpuFusedSGD
from ingot.optimizer import FusedOptimizer

Shapes = Sequence[tuple[int, ...]]
SHAPES: Shapes = [(7,), (4, 3), (), (33, 31), (2, 3, 2, 2), (65,), (1, 17), (256, 129)]
LONG: Shapes = [(3, 20_000), (9_001,), (5, 8_193)]  # the Triton kernels add up such rows in pieces
STEPS = 10
CPU: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever torch's defaults are


class Setting(NamedTuple):
    """What every optimizer is tried with.

    Attributes:
        options: of the optimizer.
        close: how far numbers may be from those of the reference, relative to the largest of their tensor. 2e-6 allows
            for float32 sums in another order; 2e-2 for an ulp of what is stored, and for what it does to a parameter.
        dtype: of parameters and gradients.
        overflow: whether a GradScaler is imitated, which finds an overflow in the middle of the steps.
        long: whether rows are longer than what one program of a kernel handles; then AdamP projects.
    """

    options: dict[str, Any]
    close: float
    dtype: torch.dtype = torch.float32
    overflow: bool = False
    long: bool = False


BF16 = torch.bfloat16
STOCHASTIC = {"state_dtype": BF16, "rounding": "stochastic"}
SETTINGS: dict[str, Setting] = {
    "plain": Setting({}, 2e-6),
    "clipped": Setting({"max_grad_norm": 0.5}, 2e-6),
    "long rows": Setting({}, 2e-6, long=True),
    "overflow skipped": Setting({}, 2e-6, overflow=True),
    "bfloat16": Setting({}, 2e-2, BF16),
    "bfloat16, master weights": Setting({"master_weights": True}, 2e-2, BF16),
    "bfloat16, stochastic": Setting(STOCHASTIC, 2e-2, BF16),
    "16-bit states, stochastic": Setting(STOCHASTIC, 2e-2),
    "8-bit states": Setting({"state_dtype": "8bit"}, 2e-2),
}


def optimizers() -> dict[str, type[FusedOptimizer]]:
    """All classes of the package."""
    names = [name for name in dir(ingot.optim) if name.startswith("NpuFused")]
    return {name: getattr(ingot.optim, name) for name in sorted(names)}


def make_params(device: str, shapes: Shapes, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=generator, **CPU).to(device, dtype)) for s in shapes]


def trained(
    kind: type[FusedOptimizer], device: str, backend: str, setting: Setting
) -> dict[str, Tensor]:
    """Parameters and states after some steps, on the CPU."""
    params = make_params(device, LONG if setting.long else SHAPES, setting.dtype)
    options = dict(setting.options)
    if issubclass(kind, NpuFusedSGD):
        options["momentum"] = 0.9  # without it there is no state
    if issubclass(kind, NpuFusedAdamP) and setting.long:
        options["delta"] = 100.0
    optimizer: Any = kind(params, lr=1e-2, backend=backend, **options)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        found = setting.overflow and step == STEPS // 2
        for param in params:
            grad = torch.randn(param.shape, generator=generator, **CPU)
            param.grad = (grad * torch.inf if found else grad).to(device, setting.dtype)
        if setting.overflow:
            optimizer.grad_scale = torch.tensor(2.0, dtype=torch.float32, device=device)
            optimizer.found_inf = torch.tensor(float(found), dtype=torch.float32, device=device)
        optimizer.step()
    result: dict[str, Tensor] = {}
    for i, param in enumerate(params):
        kept = {"parameter": param.detach(), **optimizer.state[param]}
        result |= {f"{n} {i}": v.cpu() for n, v in kept.items() if isinstance(v, Tensor)}
    return result


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of its tensor."""
    worst = 0.0
    pairs = [(value.double(), two[name].double()) for name, value in one.items() if value.numel()]
    for a, b in pairs:
        if not torch.isfinite(a).all() or not torch.isfinite(b).all():
            return float("inf")
        scale = b.abs().max().clamp(min=1e-3)
        worst = max(worst, float((a - b).abs().max() / scale))
    return worst


def declines(reason: str, setting: Setting) -> bool:
    """Whether a backend leaves a case to others, and may: its compiler works, and something is not in float32."""
    broken = re.search(r"cannot compile|cannot be translated", reason)
    all_float32 = setting.dtype is torch.float32 and "state_dtype" not in setting.options
    return reason.startswith("backend=") and not broken and not all_float32


def check(
    kind: type[FusedOptimizer], device: str, backend: str, known: dict[str, dict[str, Tensor]]
) -> Iterator[tuple[bool, str]]:
    """Lines about one optimizer on one backend, each with whether all is well; ``known`` keeps what is expected."""
    for name, setting in SETTINGS.items():
        label = f"{kind.__name__:20} {backend:10} {name:26}"
        try:
            one, two = (trained(kind, device, backend, setting) for _ in range(2))
        except Exception as error:  # it declines, or the device or its driver lacks something
            reason = (str(error) or repr(error)).splitlines()[0]
            declined = declines(reason, setting)
            yield declined, f"{label} {'declined' if declined else 'FAILED'}: {reason}"
            continue
        if name not in known:
            known[name] = trained(kind, "cpu", "reference", setting)
        far = distance(one, known[name])
        same = all(torch.equal(one[key], two[key]) for key in one)
        good = far <= setting.close and same
        bits = "same bits twice" if same else "OTHER BITS the second time"
        yield good, f"{label} {'ok    ' if good else 'FAILED'} differs by {far:.1e}, {bits}"


def wait(device: str) -> None:
    """Wait until the device is done."""
    module = getattr(torch, torch.device(device).type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


def timed(optimizer: Any, params: Sequence[Parameter], device: str, steps: int) -> float:
    """Milliseconds of the median step."""
    for param in params:
        param.grad = torch.ones_like(param)
    for _ in range(3):
        optimizer.step()
    times = []
    for _ in range(steps):
        wait(device)
        start = time.perf_counter()
        optimizer.step()
        wait(device)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def contestants(device: str) -> Iterator[tuple[str, str, Callable[[list[Parameter]], Any]]]:
    """AdamW and SGD, ours and torch's: ``(optimizer, whose, what makes it)``."""
    modes = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}
    kinds: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("AdamW", NpuFusedAdamW, torch.optim.AdamW, {"lr": 1e-3}),
        ("SGD", NpuFusedSGD, torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    ]
    for title, ours, theirs, options in kinds:
        for name in taking(device):
            yield title, f"ingot {name}", partial(ours, backend=name, **options)
        for mode, switch in modes.items():
            yield title, f"torch {mode}", partial(theirs, **switch, **options)


def speed(device: str, quick: bool) -> Iterator[str]:
    """AdamW and SGD with momentum on many small tensors and on a few large ones, beside torch's own."""
    small: Shapes = [(16, 64)] * (50 if quick else 1000)
    large: Shapes = [(128, 128) if quick else (1024, 1024)] * 8
    for shapes in (small, large):
        title = f"{len(shapes)} of {shapes[0]}"
        for optimizer, name, build in contestants(device):
            params = make_params(device, shapes)
            try:
                spent = f"{timed(build(params), params, device, 3 if quick else 20):9.3f} ms"
            except Exception as error:
                spent = f"cannot: {(str(error) or repr(error)).splitlines()[0]}"
            yield f"{optimizer + ',':6} {title:20} {name:18} {spent}"


def taking(device: str) -> list[str]:
    """The backends that take tensors of a device."""
    return [
        backend.name
        for backend in backends.TABLE
        if backend.runs_on(torch.device(device)) and backend.unavailable() is None
    ]


def describe(device: str) -> Iterator[str]:
    """The machine and the versions."""
    module: Any = getattr(torch, torch.device(device).type, None)
    name = module.get_device_name() if hasattr(module, "get_device_name") else platform.processor()
    yield f"ingot {ingot.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    yield f"{platform.platform()}, device {device}: {name or 'unnamed'}"
    chosen, why = backends.choose_for(device)
    yield f"backend {chosen} ({why})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m ingot.selftest", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cuda, npu, xpu, mps or cpu (the default)")
    parser.add_argument("--quick", action="store_true", help="small tensors for the times")
    chosen = parser.parse_args(arguments)
    try:
        torch.zeros(1, device=chosen.device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        parser.error(f"--device {chosen.device}: {(str(error) or repr(error)).splitlines()[0]}")
    for line in describe(chosen.device):
        print(line)
    failed = 0
    for kind in optimizers().values():
        known: dict[str, dict[str, Tensor]] = {}
        for backend in taking(chosen.device):
            for good, line in check(kind, chosen.device, backend, known):
                failed += not good
                print(line, flush=True)
    for line in speed(chosen.device, chosen.quick):
        print(line, flush=True)
    # Whoever reads it sees which backends were not there to be tried: describe() says why.
    print(f"{failed} FAILED" if failed else f"all is well on {', '.join(taking(chosen.device))}")
    return 1 if failed else 0


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("once")
        raise SystemExit(main())
