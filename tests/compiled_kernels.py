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
        spills: bytes of registers that did not fit (on AMD, the number of registers).
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

    def check(self, kernel: build.Kernel, mix: str, which: str = "") -> None:
        """Raise if a kernel does what it must not, or reads or writes aligned elements in narrower pieces."""
        bad = {n: getattr(self, n) for n in ("spills", "atomics", "fused", "approximate")}
        assert not any(bad.values()), (which, bad)
        assert 0 < self.registers <= 128, (which, self)
        loads, stores = wide_accesses(kernel, mix)
        assert self.wide_loads >= loads, (which, self, f"{loads} wide loads are needed")
        assert self.wide_stores >= stores, (which, self, f"{stores} wide stores are needed")


def block_of(mix: str) -> int:
    """Elements handled at a time, as ``layout.Layout`` chooses them for these types."""
    return BLOCKS[2 if "16" in mix else 4]


def wide_accesses(kernel: build.Kernel, mix: str) -> tuple[int, int]:
    """The loads and stores of 16 bytes that every thread needs for one block, read from the text of a kernel.

    The text marks what is aligned with ``tl.multiple_of``. Codes of 8 bits do not count: a thread has no 16 of them.
    """
    per_thread = block_of(mix) // build.THREADS
    found = []
    for word in ("load", "store"):
        places = re.findall(rf"tl\.{word}\(tl\.multiple_of\((\w+)_at ", kernel.function.src)
        kinds = [
            re.search(rf"\b{name}_at = .*tl\.(\w+)\)\)", kernel.function.src) for name in places
        ]
        bits = [int(re.sub(r"\D", "", kind[1].replace("bfloat", ""))) for kind in kinds if kind]
        assert len(bits) == len(places), "every operand has an address of a known type"
        found.append(sum(per_thread * each // 128 for each in bits if each > 8))
    return found[0], found[1]


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
    block = block_of(mix) if "CHUNK" in function.arg_names else ROW_BLOCK
    constants = {"CHUNK": CHUNK, "BLOCK": block, "SUMS": 4}
    places = {name: (place,) for place, name in enumerate(function.arg_names)}
    signature = {
        name: "constexpr" if name in CONSTANTS else ARGUMENTS.get(name, "fp32") for name in places
    }
    known = {places[name]: value for name, value in constants.items() if name in places}
    source = ASTSource(fn=function, signature=signature, constexprs=known)
    target = TARGETS[arch]
    told = build.options(target.backend, target.warp_size)
    made = triton.compile(source, target=target, options=told)
    if arch.startswith("gfx"):
        return amd_code(made.asm["amdgcn"], made.asm["llir"])
    return cuda_code(made.asm["ptx"], arch)


def cuda_code(ptx: str, arch: str) -> Code:
    """What PTX says, and ptxas about it."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin"
    ptxas = tool / ("ptxas-blackwell" if arch == "sm_100" else "ptxas")
    suffix = "a" if arch in ("sm_90", "sm_100") else ""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        flags = ["-v", "--fmad=false", "-arch", arch + suffix, "-o", "/dev/null"]
        command = [ptxas, *flags, file.name]
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


def amd_code(text: str, llir: str) -> Code:
    """What the assembly for AMD says, and the representation of LLVM that it was made from.

    The assembly is where products and sums are fused, but a correctly rounded division is made of five fused operations
    there (and ends in ``v_div_fixup``), and a correctly rounded root of two: only those beyond them count. A quick
    division or root lacks them; LLVM's representation marks it with a flag or an allowed error.
    """

    def count(pattern: str, where: str = text) -> int:
        return len(re.findall(pattern, where, re.MULTILINE))

    def note(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", text)), default=0)

    divisions, roots = count(r"^\s+v_div_fixup_f32"), count(r"^\s+v_sqrt_f32")
    fused = count(r"^\s+v_(?:pk_)?(?:fma|mad_f|mac_f)\w*") - 5 * divisions - 2 * roots
    allowed = count(r"\b(?:fast|arcp|afn|contract|reassoc)\b|!fpmath|llvm\.(?:fma|fmuladd)\.", llir)
    quick = count(r"^\s+v_(?:rsq|exp|log)_f") + count(r"^\s+v_rcp_") - divisions
    return Code(
        note("vgpr_count"),
        note("vgpr_spill_count") + note("sgpr_spill_count"),
        count(r"(?:global|buffer|flat|ds)_atomic|\bds_add"),
        max(fused, 0),
        allowed + quick + max(-fused, 0),
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
                code.check(kernel, mix, f"{label} {role} {mix} {arch}")
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
product with a sum, or divides or takes roots approximately; where addresses are aligned, all read and write 16 bytes
at a time (codes of 8 bits fewer). 128 threads handle blocks of 512 elements, or 1024 where some have 16 bits.

"""


if __name__ == "__main__":
    main()
