"""Compiles emitted kernels for accelerators that are not here, and reads from the code what it needs and does.

    python tests/compiled_kernels.py                       every variant and mix of types: `make kernels`
    python tests/compiled_kernels.py --write FILE          the same, and the table into FILE

Needs Triton, no accelerator: the compilers for CUDA and ROCm are in its package.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from torch.nn import Parameter
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cases import CASES, Options
from ingot.backends.triton_kernels import build
from ingot.backends.triton_kernels.layout import BLOCKS, CHUNK, ROW_BLOCK
from ingot.backends.triton_kernels.tile import Types
from ingot.declare.spec import Variant

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Types of the arguments by name; scalars are fp32.
ARGUMENTS = dict.fromkeys(("table", "sizes", "lengths", "places"), "*i64")
ARGUMENTS |= dict.fromkeys(("items", "first_rows", "split"), "*i32")
ARGUMENTS |= dict.fromkeys(("values", "factors", "roots", "grad_scale"), "*fp32")
ARGUMENTS |= dict.fromkeys(("width", "lines", "rows", "tensors", "seed"), "i32")
CONSTANTS = ("CHUNK", "BLOCK", "SUMS")
MIXES = {
    "float32": ("float32", "float32", "float32", False, False),
    "bfloat16, float32 states": ("bfloat16", "bfloat16", "float32", False, False),
    "bfloat16": ("bfloat16", "bfloat16", "bfloat16", False, False),
    "float16, master": ("float16", "float16", "float32", True, False),
    "bfloat16, stochastic": ("bfloat16", "bfloat16", "bfloat16", False, True),
    "float32, 8-bit states": ("float32", "float32", "8bit", False, False),
    "bfloat16, 8-bit states, stochastic": ("bfloat16", "bfloat16", "8bit", False, True),
}


@dataclass(frozen=True)
class Code:
    """What the machine code of a kernel needs and does.

    Attributes:
        registers: 32-bit registers per thread.
        spills: bytes of registers that did not fit.
        atomics: atomic operations.
        fused: products and sums rounded once.
        approximate: divisions and roots that are not correctly rounded.
        wide_loads: loads of 16 bytes per thread.
        wide_stores: stores of 16 bytes per thread.
    """

    registers: int
    spills: int
    atomics: int
    fused: int
    approximate: int
    wide_loads: int
    wide_stores: int


def variant_of(name: str, options: Options) -> tuple[Variant, tuple[str, ...]]:
    """The variant of an optimizer with these options, and the names of its scalars."""
    kind = CASES[name].kind
    group = CASES[name].make([Parameter(torch.zeros(2, 2))], **options).param_groups[0]
    return kind.spec.variant(group), kind.spec.scalars(group, 1)._fields


def kernels_of(name: str, options: Options, mix: str) -> Mapping[str, build.Kernel]:
    """The kernels of an optimizer, by what each is for."""
    variant, scalars = variant_of(name, options)
    return build.kernels(variant, scalars, Types.of(variant, *MIXES[mix]), frozenset())


def compiled(kernel: build.Kernel, mix: str, arch: str) -> Code:
    """Compile one kernel for one target; ``mix`` decides on the size of its blocks."""
    function = kernel.function
    block = BLOCKS[2 if "16" in mix else 4] if "CHUNK" in function.arg_names else ROW_BLOCK
    constants = {"CHUNK": CHUNK, "BLOCK": block, "SUMS": 4}
    places = {name: (place,) for place, name in enumerate(function.arg_names)}
    signature = {
        name: "constexpr" if name in CONSTANTS else ARGUMENTS.get(name, "fp32") for name in places
    }
    known = {places[name]: value for name, value in constants.items() if name in places}
    source = ASTSource(fn=function, signature=signature, constexprs=known)
    made = triton.compile(
        source,
        target=TARGETS[arch],
        options=build.options(TARGETS[arch].backend, TARGETS[arch].warp_size),
    )
    return (
        amd_code(made.asm["amdgcn"]) if arch.startswith("gfx") else cuda_code(made.asm["ptx"], arch)
    )


def cuda_code(ptx: str, arch: str) -> Code:
    """What PTX says, and ptxas about it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin"
    ptxas = tool / ("ptxas-blackwell" if arch == "sm_100" else "ptxas")
    suffix = "a" if arch in ("sm_90", "sm_100") else ""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [
            ptxas,
            "-v",
            "--fmad=false",
            "-arch",
            arch + suffix,
            file.name,
            "-o",
            "/dev/null",
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", report)
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    return Code(
        int(registers),
        sum(int(number) for pair in spilled for number in pair),
        len(re.findall(r"\b(?:atom|red)\.", ptx)),
        len(re.findall(r"\bfma\.", ptx)),
        len(re.findall(r"div\.full|div\.approx|sqrt\.approx|rcp\.approx|rsqrt", ptx)),
        len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)),
        len(re.findall(r"st\.global\S*\.v4\.b32", ptx)),
    )


def amd_code(text: str) -> Code:
    """What the assembly for AMD says. Correct division is made of fused operations there, so those are not counted."""

    def count(pattern: str) -> int:
        return len(re.findall(pattern, text))

    def note(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", text)), default=0)

    return Code(
        note("vgpr_count"),
        note("vgpr_spill_count") + note("sgpr_spill_count"),
        count(r"(?:global|buffer|flat|ds)_atomic|\bds_add"),
        0,
        0,
        count(r"(?:global|buffer|flat)_load_dwordx4"),
        count(r"(?:global|buffer|flat)_store_dwordx4"),
    )


def everything() -> Iterator[tuple[str, str, Options, str]]:
    """``(label, optimizer, options, mix)``: every variant in float32, and every mix of types once per optimizer."""
    for name, case in CASES.items():
        seen = set()
        for options in case.options.values():
            variant, _ = variant_of(name, options)
            if variant.name not in seen:
                seen.add(variant.name)
                yield variant.name, name, options, "float32"
        options = {"momentum": 0.9} if name == "sgd" else {}
        label = variant_of(name, options)[0].name
        for mix in [*MIXES][1:]:
            yield label, name, options, mix


def rows(targets: list[str]) -> Iterator[list[str]]:
    """The table: registers per kernel and target; raises if a kernel does what it must not."""
    for label, name, options, mix in everything():
        for role, kernel in kernels_of(name, options, mix).items():
            if role == "between" and mix != "float32":
                continue  # it sees no elements
            cells = []
            for arch in targets:
                code = compiled(kernel, mix, arch)
                bad = {n: getattr(code, n) for n in ("spills", "atomics", "fused", "approximate")}
                assert not any(bad.values()), (label, role, mix, arch, bad)
                cells.append(str(code.registers))
            yield [label, role, "any" if role == "between" else mix, *cells]


def main() -> None:
    """Compile everything; print a line for each kernel, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    targets = arguments.targets.split(",")
    head = ["variant", "kernel", "types", *targets]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows(targets):
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.write_text(PAGE + "\n".join(lines) + "\n", encoding="utf-8")


PAGE = f"""# Registers per kernel

Written by `make kernels` with Triton {triton.__version__}: every kernel that `ingot kernels` prints, compiled without
an accelerator, with the 32-bit registers per thread that it needs. None spills, uses an atomic operation, fuses a
product with a sum, or divides or takes roots approximately. 128 threads handle blocks
of 512 elements, or 1024 where some have 16 bits.

"""


if __name__ == "__main__":
    main()
