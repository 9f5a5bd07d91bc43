"""Emitted kernels compile for GPUs that are not here, and the code keeps its promises; `make kernels` does them all."""

import os
from typing import Any

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets in this process", allow_module_level=True)

from compiled_kernels import MIXES, TARGETS, compiled, kernels_of  # noqa: E402

# One second each: every target once, every mix of types once, both kinds of two-pass optimizers, and looking back.
KERNELS = [
    *(("adamw", {}, "float32", arch) for arch in TARGETS),
    *(("adamw", {"amsgrad": True}, mix, "sm_90") for mix in MIXES),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "bfloat16", "gfx942"),
    ("adadelta", {"weight_decay": 0.1}, "float32", "sm_80"),
    ("lamb", {"weight_decay": 0.1}, "float32", "sm_80"),
    ("lamb", {}, "bfloat16", "sm_90"),
    ("adamp", {"nesterov": True}, "bfloat16, stochastic", "sm_90"),
    ("adamp", {}, "float32", "gfx942"),
    ("adamp", {}, "float32, 8-bit states", "sm_80"),
    ("lamb", {}, "bfloat16, 8-bit states, stochastic", "gfx942"),
]


@pytest.mark.parametrize(("name", "options", "mix", "arch"), KERNELS)
def test_code(name: str, options: dict[str, Any], mix: str, arch: str) -> None:
    for role, kernel in kernels_of(name, options, mix).items():
        code = compiled(kernel, mix, arch)
        assert code.spills == code.atomics == code.fused == code.approximate == 0, (role, code)
        assert 0 < code.registers <= 128
        if role == "between":
            continue
        # All operands are read 16 bytes at a time where they are aligned, and those that change are written so.
        if "8-bit" in mix:  # of codes, 16 bytes would be more elements than a thread has
            assert code.wide_loads >= (2 if role == "elementwise" else 1), (role, code)
            assert code.wide_stores >= (role in ("elementwise", "second")), (role, code)
            continue
        states = 1 if name == "sgd" else 3 if "amsgrad" in options else 2
        needed = 1 + states if role == "second" else 2 + states
        assert code.wide_loads >= needed - (role == "second" and "amsgrad" in options), (role, code)
        assert code.wide_stores >= (1 if role == "second" else states), (role, code)


def test_a_fused_product_would_be_seen() -> None:
    """What is asserted above can fail: with fusion the same kernel has fused operations."""
    from ingot.backends.triton_kernels import build

    (kernel,) = kernels_of("adamw", {}, "float32").values()
    with pytest.MonkeyPatch.context() as patch:
        fused = {**build.options("cuda", 32), "enable_fp_fusion": True}
        patch.setattr(build, "options", lambda *target: fused)
        assert compiled(kernel, "float32", "sm_80").fused > 0
