"""Operators of torch_npu that have a plain meaning, written with torch operators.

Autograd sees those, so that none needs a backward of its own. What is computed in 16 bits on an NPU
is computed in float32 here and rounded once.
"""

from collections.abc import Sequence

import torch

from ingot.npusim.placement import require_npu

# What npu_format_cast may be asked for: ACL's numbers of memory formats.
_FORMATS = {0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 29: "FRACTAL_NZ"}


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in the type its operator computes in: float32, or float64 if it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def npu_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `self / rms * gamma` over the last dimensions, those of gamma, and `1 / rms`."""
    require_npu("npu_rms_norm", self=self, gamma=gamma)
    if gamma.dim() > self.dim() or self.shape[self.dim() - gamma.dim() :] != gamma.shape:
        raise RuntimeError(
            f"npu_rms_norm: gamma of shape {tuple(gamma.shape)} must have the last dimensions "
            f"of self, whose shape is {tuple(self.shape)}"
        )
    x = widened(self)
    over = list(range(self.dim() - gamma.dim(), self.dim()))
    inverse = torch.rsqrt(x.square().mean(over, keepdim=True) + epsilon)
    return (x * inverse * widened(gamma)).to(self.dtype), inverse


def npu_rotary_mul(
    input: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half"
) -> torch.Tensor:
    """Returns `input * r1 + rotated(input) * r2`: the rotary position embedding."""
    require_npu("npu_rotary_mul", input=input, r1=r1, r2=r2)
    if input.shape[-1] % 2:
        raise RuntimeError(f"npu_rotary_mul: the last dimension is odd: {input.shape[-1]}")
    x = widened(input)
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated = torch.cat((-second, first), -1)
    elif rotary_mode == "interleave":
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        raise RuntimeError(
            f"npu_rotary_mul: rotary_mode must be 'half' or 'interleave', not {rotary_mode!r}"
        )
    result: torch.Tensor = (x * widened(r1) + rotated * widened(r2)).to(input.dtype)
    return result


def npu_swiglu(self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Returns `silu(A) * B`, where A and B are the halves of the tensor along `dim`."""
    require_npu("npu_swiglu", self=self)
    if self.shape[dim] % 2:
        raise RuntimeError(f"npu_swiglu: dimension {dim} must be even, not {self.shape[dim]}")
    first, second = widened(self).chunk(2, dim)
    return (torch.nn.functional.silu(first) * second).to(self.dtype)


def npu_confusion_transpose(
    self: torch.Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool
) -> torch.Tensor:
    """Returns a permuted and reshaped copy; `transpose_first` says which comes first."""
    require_npu("npu_confusion_transpose", self=self)
    order = tuple(perm)
    if transpose_first:
        return self.permute(order).reshape(shape).clone(memory_format=torch.contiguous_format)
    return self.reshape(shape).permute(order).clone(memory_format=torch.contiguous_format)


def npu_format_cast(self: torch.Tensor, acl_format: int) -> torch.Tensor:
    """Returns a copy of the same values: memory formats of an NPU are not simulated."""
    require_npu("npu_format_cast", self=self)
    if acl_format not in _FORMATS:
        known = ", ".join(f"{number} ({name})" for number, name in _FORMATS.items())
        raise RuntimeError(f"npu_format_cast: acl_format must be one of {known}, not {acl_format}")
    return self.clone()


def npu_format_cast_(self: torch.Tensor, acl_format: int) -> torch.Tensor:
    """Returns the tensor itself: memory formats of an NPU are not simulated."""
    npu_format_cast(self, acl_format)
    return self


def get_npu_format(self: torch.Tensor) -> int:
    """Returns 2 (ND): the simulated NPU has no other memory format."""
    require_npu("get_npu_format", self=self)
    return 2


def npu_dtype_cast(input: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the tensor in another type, always a copy."""
    require_npu("npu_dtype_cast", input=input)
    return input.to(dtype, copy=True)


def npu_apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: torch.Tensor | None = None,
    amsgrad: bool | None = None,
    maximize: bool | None = None,
    *,
    var: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Makes one step of AdamW on `var`, `m` and `v` in place, and returns them.

    `beta1_power` and `beta2_power` are the powers before this step. With `amsgrad` the larger of
    `max_grad_norm` and the new `v` divides; `max_grad_norm` is only read.
    """
    require_npu("npu_apply_adam_w", var=var, m=m, v=v, grad=grad, max_grad_norm=max_grad_norm)
    if amsgrad and max_grad_norm is None:
        raise RuntimeError("npu_apply_adam_w: amsgrad=True needs max_grad_norm")
    for name, tensor in (("m", m), ("v", v), ("grad", grad), ("max_grad_norm", max_grad_norm)):
        if tensor is not None and tensor.shape != var.shape:
            raise RuntimeError(
                f"npu_apply_adam_w: {name} has the shape {tuple(tensor.shape)}, "
                f"var has {tuple(var.shape)}"
            )
    with torch.no_grad():
        gradient = -widened(grad) if maximize else widened(grad)
        first = widened(m) * beta1 + gradient * (1 - beta1)
        second = widened(v) * beta2 + gradient.square() * (1 - beta2)
        largest = torch.maximum(widened(max_grad_norm), second) if amsgrad else second  # type: ignore[arg-type]
        denominator = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
        decayed = widened(var) * (1 - lr * weight_decay)
        var.copy_(decayed - first / denominator * (lr / (1 - beta1_power * beta1)))
        m.copy_(first)
        v.copy_(second)
    return var, m, v
