"""`python -m ingot.selftest --device cuda`: two minutes on your hardware, a report to paste into an issue.

Every optimizer on every backend that takes the device: the parameters and states of some steps against those of the
reference backend, the same bits when a step is repeated, and the time of a step beside torch's own.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import ingot
from ingot import backends
from ingot.optim import NpuFusedAdamW, NpuFusedSGD
from ingot.optimizer import FusedOptimizer

Shapes = Sequence[tuple[int, ...]]
SHAPES: Shapes = [(7,), (4, 3), (), (33, 31), (2, 3, 2, 2), (65,), (1, 17), (256, 129)]
STEPS = 10
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"max_grad_norm": 0.5},
    "16-bit states, stochastic": {"state_dtype": torch.bfloat16, "rounding": "stochastic"},
    "8-bit states": {"state_dtype": "8bit"},
}
# float32 with sums in another order; an ulp of what is stored, and of what it does to a parameter.
CLOSE = {"plain": 2e-6, "clipped": 2e-6, "16-bit states, stochastic": 2e-2, "8-bit states": 2e-2}


def optimizers() -> dict[str, type[FusedOptimizer]]:
    """All classes of the package."""
    names = [name for name in dir(ingot.optim) if name.startswith("NpuFused")]
    return {name: getattr(ingot.optim, name) for name in sorted(names)}


def make_params(device: str, shapes: Shapes, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """The same numbers on every device."""
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(s, generator=generator).to(device, dtype)) for s in shapes]


def trained(
    kind: type[FusedOptimizer], device: str, backend: str, options: dict[str, Any]
) -> dict[str, Tensor]:
    """Parameters and states after some steps, on the CPU."""
    params = make_params(device, SHAPES)
    if issubclass(kind, NpuFusedSGD):
        options = {"momentum": 0.9, **options}  # without it there is no state
    optimizer = kind(params, lr=1e-2, backend=backend, **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(device)
        optimizer.step()
    result = {f"parameter {i}": param.detach().cpu() for i, param in enumerate(params)}
    for i, param in enumerate(params):
        for name, value in optimizer.state[param].items():
            if isinstance(value, Tensor):
                result[f"{name} {i}"] = value.cpu()
    return result


def distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of its tensor."""
    worst = 0.0
    for name, value in one.items():
        a, b = value.double(), two[name].double()
        if not a.numel():
            continue
        if not torch.isfinite(a).all() or not torch.isfinite(b).all():
            return float("inf")
        scale = b.abs().max().clamp(min=1e-3)
        worst = max(worst, float((a - b).abs().max() / scale))
    return worst


def check(kind: type[FusedOptimizer], device: str, backend: str) -> Iterator[tuple[bool, str]]:
    """Lines about one optimizer on one backend, each with whether all is well."""
    for name, options in OPTIONS.items():
        label = f"{kind.__name__:20} {backend:10} {name:26}"
        try:
            one, two = (trained(kind, device, backend, options) for _ in range(2))
        except RuntimeError as error:  # it declines, or the device lacks an operator
            reason = (str(error) or "no message").splitlines()[0]
            declined = reason.startswith("backend=")
            yield declined, f"{label} {'declined' if declined else 'FAILED'}: {reason}"
            continue
        far = distance(one, trained(kind, "cpu", "reference", options))
        same = all(torch.equal(one[key], two[key]) for key in one)
        good = far <= CLOSE[name] and same
        yield (
            good,
            (
                f"{label} {'ok    ' if good else 'FAILED'} differs by {far:.1e}, "
                f"{'same bits twice' if same else 'OTHER BITS the second time'}"
            ),
        )


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


def speed(device: str, quick: bool) -> Iterator[str]:
    """AdamW on many small tensors and on a few large ones, beside torch's own."""
    small: Shapes = [(16, 64)] * (50 if quick else 1000)
    large: Shapes = [(128, 128) if quick else (1024, 1024)] * 8
    torch_modes: dict[str, dict[str, bool]] = {"fused": {"fused": True}}
    torch_modes |= {"foreach": {"foreach": True}, "loop": {"foreach": False}}
    for shapes in (small, large):
        title = f"{len(shapes)} of {shapes[0]}"
        builds: dict[str, Callable[[list[Parameter]], Any]] = {
            f"ingot {name}": lambda params, name=name: NpuFusedAdamW(params, lr=1e-3, backend=name)  # type: ignore[misc]
            for name in taking(device)
        }
        builds |= {
            f"torch {mode}": lambda params, switch=switch: torch.optim.AdamW(  # type: ignore[misc]
                params, lr=1e-3, **switch
            )
            for mode, switch in torch_modes.items()
        }
        for name, build in builds.items():
            params = make_params(device, shapes)
            try:
                spent = f"{timed(build(params), params, device, 3 if quick else 20):9.3f} ms"
            except RuntimeError as error:
                spent = f"cannot: {str(error).splitlines()[0]}"
            yield f"AdamW, {title:20} {name:18} {spent}"


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
        for backend in taking(chosen.device):
            for good, line in check(kind, chosen.device, backend):
                failed += not good
                print(line, flush=True)
    for line in speed(chosen.device, chosen.quick):
        print(line, flush=True)
    print(f"{failed} FAILED" if failed else "all is well")
    return 1 if failed else 0


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("once")
        raise SystemExit(main())
