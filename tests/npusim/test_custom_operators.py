"""Operators of torch_npu by name, against plain formulas in float64, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

CLOSE = {
    torch.float32: {"rtol": 1e-6, "atol": 1e-6},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    dims = tuple(range(-gamma.dim(), 0))
    return x / ((x * x).mean(dims, keepdim=True) + epsilon) ** 0.5 * gamma


def rotary(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> Any:
    width = x.shape[-1]
    columns = []
    for i in range(width):  # column by column, as the document writes it
        if rotary_mode == "half":
            other = -x[..., i + width // 2] if i < width // 2 else x[..., i - width // 2]
        else:
            other = x[..., i - 1] if i % 2 else -x[..., i + 1]
        columns.append(other)
    return x * r1 + torch.stack(columns, -1) * r2


def swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    half = x.shape[dim] // 2
    first, second = x.narrow(dim, 0, half), x.narrow(dim, half, half)
    return first / (1 + (-first).exp()) * second


# The operator's name, the plain formula, the tensors, other arguments.
CASES: dict[str, tuple[str, Callable[..., Any], list[torch.Tensor], dict[str, Any]]] = {
    "rms_norm": ("npu_rms_norm", rms_norm, [randn(3, 4, 8), randn(8, seed=1)], {}),
    "rms_norm over two": (
        "npu_rms_norm", rms_norm, [randn(3, 4, 8), randn(4, 8, seed=1)], {"epsilon": 0.1}
    ),
    "rotary half": (
        "npu_rotary_mul", rotary, [randn(2, 3, 5, 8), randn(1, 1, 5, 8), randn(1, 1, 5, 8, seed=2)], {}
    ),
    "rotary interleave": (
        "npu_rotary_mul", rotary, [randn(2, 5, 3, 8), randn(2, 5, 1, 8), randn(2, 5, 1, 8, seed=2)],
        {"rotary_mode": "interleave"},
    ),
    "swiglu": ("npu_swiglu", swiglu, [randn(3, 4, 8)], {}),
    "swiglu in the middle": ("npu_swiglu", swiglu, [randn(3, 4, 8)], {"dim": 1}),
    "transpose first": (
        "npu_confusion_transpose",
        lambda x, perm, shape, transpose_first: x.permute(perm).reshape(shape),
        [randn(2, 3, 4, 6)],
        {"perm": (0, 2, 1, 3), "shape": (2, 4, 18), "transpose_first": True},
    ),
    "reshape first": (
        "npu_confusion_transpose",
        lambda x, perm, shape, transpose_first: x.reshape(shape).permute(perm),
        [randn(2, 3, 4, 6)],
        {"perm": (0, 2, 1), "shape": (2, 12, 6), "transpose_first": False},
    ),
    "format_cast": ("npu_format_cast", lambda x, acl_format: x, [randn(3, 4)], {"acl_format": 29}),
}  # fmt: skip


def first_of(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_against_the_plain_formula(case: str, dtype: torch.dtype) -> None:
    import torch_npu

    name, formula, tensors, options = CASES[case]
    ours = [t.to(dtype).npu().requires_grad_() for t in tensors]
    exact = [t.to(dtype).double().requires_grad_() for t in tensors]
    output = first_of(getattr(torch_npu, name)(*ours, **options))
    expected = formula(*exact, **options)
    assert output.dtype == dtype and output.device.type == "npu"
    torch.testing.assert_close(output.cpu().double(), expected, **CLOSE[dtype])
    factor = torch.randn(expected.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    (output * factor.npu()).sum().backward()
    (expected * factor.double()).sum().backward()
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None and mine.grad.dtype == dtype
        close = {name: 5 * value for name, value in CLOSE[dtype].items()}  # sums over several rows
        torch.testing.assert_close(mine.grad.cpu().double(), theirs.grad, **close)
    by_the_other_name = first_of(getattr(torch.ops.npu, name)(*ours, **options))
    assert by_the_other_name.equal(output)


def test_rms_norm_returns_the_inverse_too() -> None:
    x, gamma = randn(3, 4, 8), randn(8)
    inverse = torch.ops.npu.npu_rms_norm(x.half().npu(), gamma.half().npu())[1]
    assert inverse.shape == (3, 4, 1) and inverse.dtype == torch.float32
    expected = (x.half().double().square().mean(-1, keepdim=True) + 1e-6) ** -0.5
    torch.testing.assert_close(inverse.cpu().double(), expected, rtol=1e-6, atol=0.0)


def test_dtype_and_format() -> None:
    import torch_npu

    x = torch.tensor([0, 0.5, -1.0]).npu()
    cast = torch_npu.npu_dtype_cast(x, dtype=torch.int)
    assert cast.dtype == torch.int32 and cast.tolist() == [0, 0, -1]
    copy = torch_npu.npu_dtype_cast(x, torch.float32)
    copy.add_(1)
    assert x.tolist() == [0, 0.5, -1]
    x.requires_grad_()
    torch_npu.npu_dtype_cast(x, torch.float16).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0] and x.grad.dtype == torch.float32
    assert torch_npu.get_npu_format(copy) == 2
    assert torch_npu.npu_format_cast_(copy, 29).data_ptr() == copy.data_ptr()
    assert torch_npu.npu_format_cast(copy, 29).data_ptr() != copy.data_ptr()
    with pytest.raises(RuntimeError, match=r"acl_format must be one of 0 .NCHW.*, not 77"):
        torch_npu.npu_format_cast(copy, 77)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("options", [{}, {"maximize": True}, {"amsgrad": True}], ids=str)
def test_adam_w_against_torch(options: dict[str, bool], dtype: torch.dtype) -> None:
    import torch_npu

    start = randn(4, 5).to(dtype)
    param = start.double().clone().requires_grad_()
    oracle = torch.optim.AdamW([param], lr=0.01, weight_decay=0.1, **options)
    tensors = [start.npu(), torch.zeros_like(start).npu(), torch.zeros_like(start).npu()]
    addresses = [t.data_ptr() for t in tensors]
    largest = torch.zeros(4, 5, dtype=dtype).npu() if options.get("amsgrad") else None
    for step in range(5):
        grad = randn(4, 5, seed=step).to(dtype) * (5 - step)
        param.grad = grad.double()
        oracle.step()
        result = torch_npu.npu_apply_adam_w(
            0.9**step, 0.999**step, 0.01, 0.1, 0.9, 0.999, 1e-8, grad.npu(), largest,
            options.get("amsgrad"), options.get("maximize"), out=tuple(tensors),
        )  # fmt: skip
        if largest is not None:  # the operator reads the maximum; the caller keeps it
            torch.maximum(largest, tensors[2], out=largest)
    assert [t.data_ptr() for t in (*tensors, *result)] == addresses * 2
    state = oracle.state[param]
    # Five steps, each rounded to the type; v is far below 1.
    close = {"rtol": 5 * CLOSE[dtype]["rtol"], "atol": CLOSE[dtype]["atol"]}
    for ours, expected in zip(
        tensors, (param.detach(), state["exp_avg"], state["exp_avg_sq"]), strict=True
    ):
        torch.testing.assert_close(ours.cpu().double(), expected, **close)
    assert (tensors[0].cpu() - start).abs().max() > 0.01


def test_adam_w_refuses() -> None:
    import torch_npu

    x = torch.ones(2).npu()
    scalars = (1.0, 1.0, 0.01, 0.1, 0.9, 0.999, 1e-8)
    with pytest.raises(RuntimeError, match="works in place only"):
        torch_npu.npu_apply_adam_w(*scalars, x)
    with pytest.raises(RuntimeError, match="amsgrad=True needs max_grad_norm"):
        torch_npu.npu_apply_adam_w(*scalars, x, amsgrad=True, out=(x, x, x))
    with pytest.raises(RuntimeError, match=r"v has the shape \(3,\), var has \(2,\)"):
        torch_npu.npu_apply_adam_w(*scalars, x, out=(x, x, torch.ones(3).npu()))
    assert x.tolist() == [1.0, 1.0]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "gamma": (
        lambda: torch.ops.npu.npu_rms_norm(randn(3, 4).npu(), randn(3).npu()),
        r"gamma of shape \(3,\) must have the last dimensions of self",
    ),
    "rotary mode": (
        lambda: torch.ops.npu.npu_rotary_mul(*[randn(1, 1, 2, 4).npu()] * 3, "third"),
        "rotary_mode must be 'half' or 'interleave', not 'third'",
    ),
    "rotary width": (
        lambda: torch.ops.npu.npu_rotary_mul(*[randn(1, 1, 2, 3).npu()] * 3),
        "the last dimension is odd: 3",
    ),
    "swiglu width": (lambda: torch.ops.npu.npu_swiglu(randn(2, 3).npu()), "must be even, not 3"),
    "cpu": (lambda: torch.ops.npu.npu_swiglu(randn(2, 4)), "to be on the same device"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


def test_unknown_operators_say_what_they_are() -> None:
    import torch_npu

    for owner, module in ((torch_npu, "torch_npu"), (torch.ops.npu, "torch.ops.npu")):
        message = f"'{module}' is simulated by ingot.npusim and has no operator 'npu_nms_rotated'"
        with pytest.raises(AttributeError, match=message):
            owner.npu_nms_rotated  # noqa: B018
        assert not hasattr(owner, "npu_nms_rotated")
