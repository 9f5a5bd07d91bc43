"""Makes torch_npu's operators known by name: torch_npu.npu_swiglu and torch.ops.npu.npu_swiglu."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim import attention, operators
from ingot.npusim.bridge import DEVICE_TYPE
from ingot.npusim.module import missing

_SCHEMAS: dict[str, tuple[str, Callable[..., Any]]] = {
    "npu_fusion_attention": (
        "(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, "
        "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., "
        "float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, "
        "int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None, "
        "int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
        'bool sync=False, str softmax_layout="") '
        "-> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
        attention.npu_fusion_attention,
    ),
    "npu_rms_norm": (
        "(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
        operators.npu_rms_norm,
    ),
    "npu_rotary_mul": (
        "(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half') -> Tensor",
        operators.npu_rotary_mul,
    ),
    "npu_swiglu": ("(Tensor self, int dim=-1) -> Tensor", operators.npu_swiglu),
    "npu_confusion_transpose": (
        "(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor",
        operators.npu_confusion_transpose,
    ),
    "npu_format_cast": ("(Tensor self, int acl_format) -> Tensor", operators.npu_format_cast),
    "npu_format_cast_": (
        "(Tensor(a!) self, int acl_format) -> Tensor(a!)",
        operators.npu_format_cast_,
    ),
    "get_npu_format": ("(Tensor self) -> int", operators.get_npu_format),
    "npu_dtype_cast": ("(Tensor input, ScalarType dtype) -> Tensor", operators.npu_dtype_cast),
    "npu_apply_adam_w.out": (
        "(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1, "
        "Scalar beta2, Scalar epsilon, Tensor grad, Tensor? max_grad_norm=None, "
        "bool? amsgrad=None, bool? maximize=None, *, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v) "
        "-> (Tensor(a!), Tensor(b!), Tensor(c!))",
        operators.npu_apply_adam_w,
    ),
}


def npu_apply_adam_w(
    *args: Any, out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None, **kwargs: Any
) -> Any:
    """Makes one step of AdamW in place on `out=(var, m, v)`, which must be given.

    The other arguments are those of torch.ops.npu.npu_apply_adam_w.
    """
    if out is None:
        raise RuntimeError("npu_apply_adam_w works in place only: give out=(var, m, v)")
    named = dict(zip(("var", "m", "v"), out, strict=True))
    return torch.ops.npu.npu_apply_adam_w.out(*args, **kwargs, **named)


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator decides by itself what it computes in which type."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(DEVICE_TYPE, enabled=False):
            return function(*args, **kwargs)

    return run


class _Operator:
    """torch_npu.<name>: looks the operator up when called, so that it can be made before."""

    def __init__(self, name: str, doc: str | None) -> None:
        self.__name__, self.__doc__ = name, doc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls torch.ops.npu.<name>."""
        return getattr(torch.ops.npu, self.__name__)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<operator torch_npu.{self.__name__} (simulated)>"


def named_operators() -> dict[str, Callable[..., Any]]:
    """Returns the operators as torch_npu has them, by name."""
    named: dict[str, Callable[..., Any]] = {
        name: _Operator(name, function.__doc__)
        for name, (_, function) in _SCHEMAS.items()
        if "." not in name
    }
    return named | {"npu_apply_adam_w": npu_apply_adam_w}


class _Namespace(torch._ops._OpNamespace):
    """torch.ops.npu, which says that it is simulated when it is asked for more than it has."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
            raise AttributeError(missing(f"torch.ops.{self.name}", name)) from None


def define_operators() -> torch.library.Library:
    """Defines the operators in torch.ops.npu; they are there as long as the returned library is."""
    library = torch.library.Library(DEVICE_TYPE, "FRAGMENT")
    for name, (schema, function) in _SCHEMAS.items():
        library.define(name + schema)
        library.impl(name, _without_autocast(function), "CompositeImplicitAutograd")
    setattr(torch.ops, DEVICE_TYPE, _Namespace(DEVICE_TYPE))
    return library
