"""torch.npu.FloatTensor and its kin: one type per dtype, to make tensors with and to ask isinstance."""

from typing import Any

import torch

from ingot.npusim.bridge import DEVICE_TYPE, is_npu

_DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _TypedTensor(type):
    """The type of these types: calling one makes a tensor, which is an instance by its dtype."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        """Makes a tensor as `torch.FloatTensor(...)` does: of sizes, or of data."""
        if all(isinstance(size, int) for size in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=DEVICE_TYPE)
        (data,) = args
        if isinstance(data, torch.Size):
            return torch.empty(data, dtype=cls.dtype, device=DEVICE_TYPE)
        return torch.as_tensor(data).to(device=DEVICE_TYPE, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return is_npu(instance) and instance.dtype == cls.dtype


def make_typed_tensors() -> dict[str, type]:
    """Returns the types by name."""
    return {
        name: _TypedTensor(
            name,
            (),
            {
                "dtype": dtype,
                "is_npu": True,
                "__module__": f"torch.{DEVICE_TYPE}",
                "__doc__": f"Tensors of {dtype} on the simulated NPU.",
            },
        )
        for name, dtype in _DTYPES.items()
    }


def mend_type() -> None:
    """Lets `tensor.type("torch.npu.FloatTensor")` and `tensor.type(torch.npu.FloatTensor)` work."""
    original = torch.Tensor.type
    prefix = f"torch.{DEVICE_TYPE}."

    def type_(
        tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        if isinstance(dtype, _TypedTensor):
            return tensor.to(device=DEVICE_TYPE, dtype=dtype.dtype)
        if isinstance(dtype, str) and dtype.startswith(prefix):
            wanted = _DTYPES.get(dtype[len(prefix) :])
            if wanted is None:
                raise ValueError(f"invalid type: {dtype!r}")
            return tensor.to(device=DEVICE_TYPE, dtype=wanted)
        return original(tensor, dtype, non_blocking, **kwargs)

    torch.Tensor.type = type_  # type: ignore[method-assign, assignment]
