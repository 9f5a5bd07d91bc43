"""Emitted kernels compile for GPUs that are not here, and the code keeps its promises; `make kernels` does them all."""

import os
from typing import Any

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets in this process", allow_module_level=True)

from triton.language.extra import libdevice  # noqa: E402

from compiled_kernels import (  # noqa: E402
    MIXES,
    TARGETS,
    compiled,
    kernels_of,
    wide_accesses,
)
from ingot.backends.triton_kernels import build, words  # noqa: E402

# One second each: every target once, every mix of types once, both kinds of two-pass optimizers, and looking back.
KERNELS = [
    *(("adamw", {}, "float32", arch) for arch in TARGETS),
    *(("adamw", {"amsgrad": True}, mix, "sm_90") for mix in MIXES),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "bfloat16", "gfx942"),
    ("adadelta", {"weight_decay": 0.1}, "float32", "sm_80"),
    ("lamb", {"weight_decay": 0.1}, "float32", "sm_80"),
    ("lamb", {}, "bfloat16", "sm_90"),
    ("lamb", {"weight_decay": 0.1}, "float32", "sm_100"),
    ("adamp", {"nesterov": True}, "bfloat16, stochastic", "sm_90"),
    ("adamp", {}, "float32", "gfx942"),
    ("adamp", {}, "float32, 8-bit states", "sm_80"),
    ("lamb", {}, "bfloat16, 8-bit states, stochastic", "gfx942"),
]


@pytest.mark.parametrize(("name", "options", "mix", "arch"), KERNELS)
def test_code(name: str, options: dict[str, Any], mix: str, arch: str) -> None:
    for role, kernel in kernels_of(name, options, mix).items():
        compiled(kernel, mix, arch).check(kernel, mix)
        # What the check asks for is read from the text of the kernel; it must ask for something.
        loads, stores = wide_accesses(kernel, mix)
        if role != "between" and "8-bit" not in mix:
            states = 1 if name == "sgd" else 3 if "amsgrad" in options else 2
            assert loads >= (1 if role == "second" else 2) + states, role
            assert stores >= (1 if role == "second" else states), role


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
def test_a_fused_product_would_be_seen(arch: str) -> None:
    """What is asserted above can fail: with fusion the same kernel has fused operations."""
    (kernel,) = kernels_of("adamw", {}, "float32").values()
    target = TARGETS[arch]
    with pytest.MonkeyPatch.context() as patch:
        fused = {**build.options(target.backend, target.warp_size), "enable_fp_fusion": True}
        patch.setattr(build, "options", lambda *target: fused)
        code = compiled(kernel, "float32", arch)
    assert code.fused > 0
    with pytest.raises(AssertionError, match="'fused': "):
        code.check(kernel, "float32")


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
@pytest.mark.parametrize(
    ("exact", "other", "seen"),
    [
        ("tl.sqrt_rn(", "tl.sqrt(", "'approximate': "),
        ("tl.div_rn(", "quick_division(", "'approximate': "),
        ("count // 8 * 8", "count", "wide loads are needed"),
    ],
)
def test_a_worse_kernel_would_be_seen(arch: str, exact: str, other: str, seen: str) -> None:
    """Quick roots, quick divisions, and a mask that keeps the compiler from using vectors."""
    (good,) = kernels_of("adamw", {}, "float32").values()
    assert exact in good.function.src
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "quick_division", quick_division, raising=False)
        worse = build.Kernel.of(good.function.src.replace(exact, other), "worse")
    with pytest.raises(AssertionError, match=seen):
        compiled(worse, "float32", arch).check(worse, "float32")


@triton.jit
def quick_division(one, two):
    """A division that both makers offer for speed; a plain one is quick on NVIDIA alone."""
    return libdevice.fast_dividef(one, two)
