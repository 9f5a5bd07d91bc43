"""Autocast on the simulated NPU: what runs in low precision, in float32, in the widest type.

torch has no kernels for the dispatch key of a foreign device's autocast; a device brings its own.
The lists follow CUDA's, which torch documents in its "Autocast Op Reference".
"""

from collections.abc import Callable
from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE, is_npu
from ingot.npusim.placement import tensors_in

# fmt: off
_LOWER = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input",
    "convolution", "gru_cell", "linalg_multi_dot", "linear", "lstm_cell", "matmul", "mm", "mv",
    "prelu", "rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention",
]
_FLOAT32 = [
    "acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "cumprod", "cumsum", "dist", "erfinv", "exp",
    "expm1", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "layer_norm", "linalg_vector_norm", "log", "log10", "log1p", "log2", "log_softmax.int",
    "logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss",
    "multilabel_margin_loss", "native_layer_norm", "nll_loss", "nll_loss2d", "norm.Scalar",
    "norm.ScalarOpt_dim", "pdist", "poisson_nll_loss", "pow.Scalar", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "prod", "prod.dim_int", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax.int", "softplus", "sum", "sum.dim_IntList",
    "tan", "triplet_margin_loss",
]
_WIDEST = [
    "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sampler",
    "index_put", "scatter_add", "stack", "tensordot", "vdot",
]
# fmt: on

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_Policy = Callable[[list[Any]], torch.dtype]


def _lower(values: list[Any]) -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_TYPE)


def _float32(values: list[Any]) -> torch.dtype:
    return torch.float32


def _widest(values: list[Any]) -> torch.dtype:
    found = {tensor.dtype for tensor in tensors_in(values) if _is_cast(tensor)}
    # Two different 16-bit types have no order: only float32 holds both.
    return found.pop() if len(found) == 1 else torch.float32


def _is_cast(tensor: torch.Tensor) -> bool:
    return is_npu(tensor) and tensor.dtype in _FLOATS


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if _is_cast(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(member, dtype) for member in value)
    return value


def _kernel(op: Any, policy: _Policy) -> Callable[..., Any]:
    own_key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = policy([*args, *kwargs.values()])
        with torch._C._ExcludeDispatchKeyGuard(own_key):
            return op(
                *(_cast(value, dtype) for value in args),
                **{name: _cast(value, dtype) for name, value in kwargs.items()},
            )

    return kernel


def autocast_kernels() -> dict[str, Callable[..., Any]]:
    """Returns the kernel of every listed operator, by the operator's name in the aten namespace."""
    kernels: dict[str, Callable[..., Any]] = {}
    for names, policy in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            kernels[name] = _kernel(op, policy)
    return kernels
