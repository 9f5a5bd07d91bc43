"""Lowers emitted kernels for Ascend with triton-ascend, as far as that goes without Huawei's toolkit.

    python tests/ascend_kernels.py             every variant and mix of types: `make kernels-ascend`
    python tests/ascend_kernels.py adamw lamb  those of some optimizers

Needs the package triton-ascend in the place of triton, no NPU. Kernels become linalg for an Ascend 910B; the compiler
that makes a binary of that is part of the toolkit.
"""

from __future__ import annotations

import subprocess
import sys

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from compiled_kernels import ARGUMENTS, BLOCKS, CHUNK, CONSTANTS, ROW_BLOCK, everything, kernels_of
from ingot.backends.triton_kernels import build

TARGET = GPUTarget("npu", "Ascend910B3", 0)


def lowered(kernel: build.Kernel, mix: str) -> str:
    """The text that the compiler of the toolkit would get."""
    function = kernel.function
    block = BLOCKS[2 if "16" in mix else 4] if "CHUNK" in function.arg_names else ROW_BLOCK
    constants = {"CHUNK": CHUNK, "BLOCK": block, "SUMS": 4}
    signature = {
        name: ARGUMENTS.get(name, "fp32") for name in function.arg_names if name not in CONSTANTS
    }
    known = {name: value for name, value in constants.items() if name in function.arg_names}
    backend = make_backend(TARGET)
    options = backend.parse_options(build.options(TARGET.backend, TARGET.warp_size))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict = {}
    backend.add_stages(stages, options)
    found = options, backend.get_codegen_implementation(), backend.get_module_map(), context
    module = ASTSource(function, signature, known).make_ir(*found)
    for stage in ("ttir", "ttadapter"):
        module = stages[stage](module, {"target": TARGET, **options.__dict__})
    return str(module)


def main(chosen: list[str]) -> int:
    """Lower everything; print a line for each kernel."""
    failed = 0
    for label, name, options, mix in everything():
        if chosen and name not in chosen:
            continue
        for role, kernel in kernels_of(name, options, mix).items():
            try:
                said = f"{len(lowered(kernel, mix).splitlines())} lines"
            except subprocess.CalledProcessError as error:
                failed += 1
                said = f"FAILED: {error.stderr.decode().strip().splitlines()[0]}"
            except Exception as error:
                failed += 1
                said = f"FAILED: {build.first_line(error)}"
            print(f"{label:30} {role:12} {mix:35} {said}", flush=True)
    print(f"{failed} FAILED" if failed else "all were lowered")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
