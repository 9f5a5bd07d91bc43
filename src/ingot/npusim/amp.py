"""torch_npu.npu.amp: the gradient scaler and the autocast of torch_npu, on top of torch's."""

import functools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state

from ingot.npusim.bridge import DEVICE_TYPE, is_npu
from ingot.npusim.module import SimulatedModule

_NAME = "torch_npu.npu.amp"


class autocast(torch.autocast):
    """Runs a region in mixed precision: `torch.autocast("npu")` with torch_npu's arguments.

    Args:
        enabled: whether to cast at all.
        dtype: the low-precision type, float16 or bfloat16.
        cache_enabled: accepted; the simulated device casts weights again each time.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(DEVICE_TYPE, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales losses and unscales gradients; the scale moves, or with `dynamic=False` stays.

    As torch_npu's does for its fused optimizers, it unscales float16 gradients of Ingot's; torch's
    own refuses. A fixed scale means that gradients are not looked at: no step is skipped.

    Args:
        init_scale: the scale at the start, or for good with `dynamic=False`.
        growth_factor: what the scale is multiplied by after `growth_interval` good steps.
        backoff_factor: what the scale is multiplied by after an overflow.
        growth_interval: how many good steps in a row make the scale grow.
        dynamic: whether the scale moves.
        enabled: False makes all of it a no-op.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        if enabled and not growth_factor > 1.0:
            raise ValueError(f"growth_factor must be > 1, not {growth_factor}")
        if enabled and not backoff_factor < 1.0:
            raise ValueError(f"backoff_factor must be < 1, not {backoff_factor}")
        super().__init__(
            DEVICE_TYPE, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._dynamic = dynamic

    def scale(self, outputs: Any) -> Any:
        """Multiplies a tensor, or each of several, by the scale."""
        if self._enabled and isinstance(outputs, torch.Tensor) and not is_npu(outputs):
            raise ValueError(f"expected outputs on an npu device, got {str(outputs.device)!r}")
        return super().scale(outputs)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        allow_fp16 = allow_fp16 or _is_ingot(optimizer)
        if self._dynamic:
            found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        else:
            _multiply_grads(optimizer, inv_scale, allow_fp16)
            found = {}
        # torch calls it an error if no gradient was there to look at; torch_npu goes on.
        return found or {found_inf.device: found_inf}

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Moves the scale, or sets it to `new_scale`; a fixed scale only starts a new round."""
        if self._dynamic or new_scale is not None or not self._enabled:
            super().update(new_scale)
            return
        self._check_scale_growth_tracker("update")
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's entries and `dynamic`; nothing if disabled."""
        state = super().state_dict()
        return {**state, "dynamic": self._dynamic} if self._enabled else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what state_dict returned; a state of torch's scaler leaves `dynamic` alone."""
        super().load_state_dict(state_dict)
        if self._enabled:
            self._dynamic = state_dict.get("dynamic", self._dynamic)


def _is_ingot(optimizer: torch.optim.Optimizer) -> bool:
    from ingot.optimizer import FusedOptimizer

    return isinstance(optimizer, FusedOptimizer)


def _grads(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                yield param.grad


@torch.no_grad()
def _multiply_grads(
    optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, allow_fp16: bool
) -> None:
    for grad in _grads(optimizer):
        if grad.dtype == torch.float16 and not allow_fp16:
            raise ValueError("Attempting to unscale FP16 gradients.")
        grad.mul_(inv_scale.to(grad.device))


def make_amp_parts() -> tuple[SimulatedModule, ...]:
    """Builds the modules of torch_npu.npu.amp."""
    modes = {
        "autocast": autocast,
        "custom_fwd": functools.partial(torch.amp.custom_fwd, device_type=DEVICE_TYPE),
        "custom_bwd": functools.partial(torch.amp.custom_bwd, device_type=DEVICE_TYPE),
    }
    return (
        SimulatedModule(f"{_NAME}.autocast_mode", "Autocast on the simulated NPU.", modes),
        SimulatedModule(
            f"{_NAME}.grad_scaler",
            "Gradient scaling on the simulated NPU.",
            {"GradScaler": GradScaler, "OptState": OptState},
        ),
        SimulatedModule(
            f"{_NAME}.common",
            "What the others share.",
            {"amp_definitely_not_available": amp_definitely_not_available},
        ),
    )


def amp_definitely_not_available() -> bool:
    """Returns False."""
    return False


def make_amp_module(parts: tuple[SimulatedModule, ...]) -> SimulatedModule:
    """Builds torch_npu.npu.amp from its modules."""
    contents: dict[str, Any] = {part.__name__.rpartition(".")[2]: part for part in parts}
    for part in parts:
        contents |= {name: vars(part)[name] for name in part.__all__ if name != "OptState"}
    return SimulatedModule(_NAME, "Mixed precision on the simulated NPU.", contents)
