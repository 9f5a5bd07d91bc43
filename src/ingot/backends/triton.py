"""The Triton backend: one launch per bucket on CUDA, ROCm, XPU and Ascend, with kernels made from the declared math."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ingot.backends.backend import Backend
from ingot.backends.triton_kernels import build, layout
from ingot.backends.triton_kernels.build import INTERPRETED
from ingot.backends.triton_kernels.step import NAMES, Step
from ingot.declare.language import Refused
from ingot.storage.blockwise8 import Blockwise8
from ingot.storage.floats import FloatFormat

if TYPE_CHECKING:
    from ingot.reductions.rows import PerRow
    from ingot.step.bucket import Bucket


@cache
def _problem() -> str | None:
    """Why Triton cannot be used on this machine."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    try:
        import_module("triton.runtime")
        if not INTERPRETED:
            active_device()
    except Exception as error:
        return f"Triton finds no device that it has a driver for ({build.first_line(error)})"
    return None


@cache
def _driven() -> str | None:
    """The type of the device that Triton makes kernels for."""
    if _problem() is not None:
        return None
    return "cpu" if INTERPRETED else active_device()


def active_device() -> str:
    """The same, as Triton's driver says it; raises if there is no driver, or more than one."""
    from triton.runtime import driver

    kind: str
    if hasattr(driver.active, "get_active_torch_device"):
        kind = driver.active.get_active_torch_device().type
    else:  # triton-ascend 3.2
        kind = driver.active.get_current_target().backend
    return kind


class Triton(Backend):
    """Takes float32, bfloat16 and float16 tensors without gaps, and 8-bit states; leaves float64 and strided ones."""

    name = "triton"
    devices = ("cpu",) if INTERPRETED else ("cuda", "xpu", "npu")
    hint = (
        "Install the Triton of your accelerator (with torch for CUDA or ROCm it is there); "
        "TRITON_INTERPRET=1 runs its kernels slowly on the CPU."
    )

    def unavailable(self) -> str | None:
        """No Triton, or no device for it."""
        return _problem()

    def runs_on(self, device: torch.device) -> bool:
        """Only the device that Triton has a driver for; the CPU where kernels are interpreted."""
        return device.type in self.devices and device.type == _driven()

    def suits(self, bucket: Bucket) -> bool:
        """Interpreting is for those who ask for it by name."""
        return not INTERPRETED

    def prepare(self, bucket: Bucket) -> str | None:
        """Find the tensors, upload what changed, compile what is new; or say why the bucket cannot be taken."""
        if not bucket.plain:
            return "it takes plain tensors, no subclasses"
        known = FloatFormat, Blockwise8
        unknown = [form.name for form in bucket.formats if not isinstance(form, known)]
        if unknown:
            return f"it does not know states kept as {unknown[0]}"
        masters = [] if bucket.masters is None else [bucket.masters]
        lists = [bucket.params, bucket.grads, *bucket.states, *masters]
        wrong = [tensors[0].dtype for tensors in lists if tensors[0].dtype not in NAMES]
        if wrong:
            return f"its kernels are not made for {wrong[0]}"
        found = layout.find_addresses(lists)
        ordered = bucket.rounding is not None or bucket.variant.spec.rows
        if found is None or (ordered and not found.row_major):
            return "some tensors are strided, or lie in memory in different orders"
        try:
            with current(bucket.params[0].device):
                bucket.prepared = step = Step(bucket, found, len(lists))
                return step.problem()
        except Refused as refused:
            return f"its math cannot be translated ({refused})"

    def run(self, bucket: Bucket) -> None:
        """One launch; three for a two-pass optimizer, one more for rows longer than a chunk, one for 8-bit states."""
        step: Step = bucket.prepared
        roles = [*step.first_pass, "between", "second"] if step.first_pass else ["elementwise"]
        with current(bucket.params[0].device):
            step.launch(roles, bucket.grad_scale)
        increment_version(bucket.params)

    def first(self, bucket: Bucket) -> Tensor:
        """Advance the states; return the sums of every row."""
        step: Step = bucket.prepared
        with current(bucket.params[0].device):
            step.launch(step.first_pass, bucket.grad_scale)
        return step.rows.values[:, : step.rows.lines].clone()

    def second(self, bucket: Bucket, keep: PerRow, rate: PerRow) -> None:
        """Apply one (keep, rate) per row."""
        step: Step = bucket.prepared
        for target, factor in zip(step.rows.factors, (keep, rate), strict=True):
            target.copy_(factor) if isinstance(factor, Tensor) else target.fill_(factor)
        with current(bucket.params[0].device):
            step.launch(["second"], bucket.grad_scale)
        increment_version(bucket.params)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the current one: Triton launches there."""
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = getattr(torch, device.type).device(device)
    return context


TRITON = Triton()
