"""Triton's kernels against the reference backend: which bits must be the same, and how far the others may be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cases import Case
from tolerances import TOLERANCES
from training import assert_same, make_params, tensors_of, train

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# The states of LAMB and AdamP are made element by element. Their parameters depend on sums, which are added in
# another order than in the reference.
OF_SUMS = ("param", "master")
Tensors = dict[str, Tensor]


def run(case: Case, backend: str, shapes: Any, dtype: torch.dtype, **options: Any) -> Tensors:
    """Parameters and states after some steps."""
    grad_dtype, steps = options.pop("grad_dtype", None), options.pop("steps", 3)
    params = make_params(shapes, dtype)
    optimizer = case.make(params, **options, backend=backend)
    train(optimizer, params, steps, dtype=grad_dtype)
    return tensors_of(optimizer)


def check(case: Case, one: Tensors, two: Tensors, dtype: torch.dtype) -> None:
    """The same bits, but for what depends on sums: those of the parameters may be a rounding or two apart."""
    loose = OF_SUMS if case.kind.spec.finish is not None else ()
    for of_sums in (True, False):
        chosen = [
            {name: value for name, value in each.items() if name.startswith(loose) == of_sums}
            for each in (one, two)
        ]
        assert_same(*chosen, *(TOLERANCES[dtype] if of_sums else (0, 0)))


def compare(case: Case, shapes: Any, dtype: torch.dtype, **options: Any) -> None:
    """Triton against the reference."""
    one, two = (run(case, name, shapes, dtype, **options) for name in ("triton", "reference"))
    check(case, one, two, dtype)
