"""The jobs of test_matrix.py: sharded training beside whole training, in every process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from layouts import LAYOUTS, Layout, local
from torch import Tensor

from cases import CASES, Case, Options
from ingot.optimizer import FusedOptimizer
from training import SHAPES, give_grads, make_params

STEPS = 20
# For 8-bit states: rows, and halves of rows, fill whole blocks, so that shards have the codes of the whole tensor. Each
# place of a mixed layout has one that is large enough, also where local parts are not.
IN_BLOCKS = [(16, 256), (32, 256), (20, 256), (18, 256), (17, 256), (7,), (33, 31)]
# Sums over shards are added in another order: in double precision, so that factors differ by a rounding.
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3, torch.complex64: 1e-6}
CODES = {torch.int8, torch.uint8}
Outcome = dict[str, str]  # what went wrong, by the id of a check; "" if nothing did


def is_exact(optimizer: FusedOptimizer) -> bool:
    """Whether no sum over a tensor takes part: then every element is computed by itself."""
    clipped = any(map(optimizer.spec.clips, optimizer.param_groups))
    return optimizer.spec.finish is None and not clipped


def compare(layout: Layout, split: FusedOptimizer, whole: FusedOptimizer) -> None:
    """Every local part of parameters and states is that of the whole run."""
    pairs = zip(split.param_groups[0]["params"], whole.param_groups[0]["params"], strict=True)
    for index, (param, expected) in enumerate(pairs):
        compare_tensor(layout, index, "param", param, expected, is_exact(whole))
        mine, theirs = split.state.get(param, {}), whole.state.get(expected, {})
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if name == "step":
                assert mine[name] == value
            elif name.endswith("_scale"):
                by_row = value.view(len(expected), -1)
                scales = layout.cut(index, by_row).flatten()
                torch.testing.assert_close(mine[name], scales, rtol=0, atol=0)
            else:
                compare_tensor(layout, index, name, mine[name], value, is_exact(whole))


def compare_tensor(
    layout: Layout, index: int, name: str, actual: Tensor, whole: Tensor, exact: bool
) -> None:
    """One tensor, also its placement."""
    # Codes have no tolerance: the settings with 8-bit states have no clipping, and other sums do not reach states.
    tolerance = 0.0 if exact or whole.dtype in CODES else CLOSE[whole.dtype]
    assert actual.shape == whole.shape
    assert getattr(actual, "placements", None) == layout.placements(index, whole)
    torch.testing.assert_close(
        local(actual.detach()),
        layout.cut(index, whole),
        rtol=tolerance,
        atol=tolerance / 10,
        msg=lambda text: f"{name} {index} {tuple(whole.shape)}: {text}",
    )


def train_both(
    make: Callable[[Any], FusedOptimizer],
    wholes: list[Tensor],
    layout: Layout,
    grads: Callable[[list[Tensor], int], None] = give_grads,
    steps: int = STEPS,
) -> tuple[FusedOptimizer, FusedOptimizer]:
    """Train shards and whole tensors with the same gradients, in lockstep."""
    whole, split = make(wholes), make(layout.params(wholes))
    for step in range(steps):
        grads(wholes, step)
        for i, (param, one) in enumerate(zip(split.param_groups[0]["params"], wholes, strict=True)):
            param.grad = None if one.grad is None else layout.lay_out(i, one.grad)
        whole.step()
        split.step()
    return split, whole


def check(case: Case, options: Options, layout: Layout, dtype: torch.dtype) -> None:
    """One cell of the matrix."""
    eight = options.get("state_dtype") == "8bit"
    wholes = make_params(IN_BLOCKS if eight else SHAPES, dtype)
    split, whole = train_both(lambda params: case.make(params, **options), wholes, layout)
    compare(layout, split, whole)
    if eight:
        for param in split.param_groups[0]["params"]:
            dtypes = {v.dtype for v in split.state[param].values() if isinstance(v, Tensor)}
            assert bool(dtypes & CODES) == (param.numel() >= 4096)
    # No DTensor reaches a backend: shards get the one that whole tensors get.
    assert {b.backend.name for b in split._plan()} == {b.backend.name for b in whole._plan()}


def outcomes(checks: Iterable[tuple[str, Callable[[], None]]]) -> Outcome:
    """Run checks one after the other; all processes run the same ones."""
    result = {}
    for name, each in checks:
        try:
            each()
            result[name] = ""
        except Exception:
            result[name] = traceback.format_exc()
            # If processes part here, what follows fails in strange ways: this is what to look at.
            print(f"{name}: {result[name]}", file=sys.stderr, flush=True)
    return result


# Options beyond those the cases declare: types, for every optimizer.
PRECISIONS: dict[str, tuple[torch.dtype, Options]] = {
    "float64": (torch.float64, {}),
    "bfloat16": (torch.bfloat16, {}),
    "masters": (torch.bfloat16, {"master_weights": True, "state_dtype": torch.bfloat16}),
    "complex64": (torch.complex64, {}),
    "reference": (torch.float32, {"backend": "reference"}),
    "lists": (torch.float32, {"backend": "lists"}),
}


# 8-bit states: some optimizers with some layouts, by the number of processes.
EIGHT: Options = {"lr": 0.01, "state_dtype": "8bit"}
EIGHT_BIT: dict[int, list[tuple[str, str, str, Options]]] = {
    2: [
        ("rows", "adamw", "8bit", {"amsgrad": True}),
        ("rows", "adamw", "8bit stochastic", {"rounding": "stochastic"}),
        ("columns", "lamb", "8bit", {"weight_decay": 0.01}),
        ("mixed", "sgd", "8bit", {"momentum": 0.9}),
    ],
    4: [
        ("mixed", "adamw", "8bit", {}),
        ("rows_x_columns", "adamp", "8bit", {"weight_decay": 0.1, "delta": 0.4}),
        ("strided", "lamb", "8bit", {}),
        ("copies_x_rows", "rmsprop_tf", "8bit", {"momentum": 0.9}),
    ],
}


def cells(processes: int) -> Iterable[tuple[str, Case, Options, str, torch.dtype]]:
    """The matrix: id, optimizer, options, layout, dtype.

    With 2 processes all options meet the mixed layout and half of them each other one; with 4 processes the options
    take turns with the layouts, and the first of every optimizer meets them all.
    """
    number = 0
    for stem, case in CASES.items():
        settings = [(name, torch.float32, options) for name, options in case.options.items()]
        settings += [(k, dtype, {"lr": 0.01, **more}) for k, (dtype, more) in PRECISIONS.items()]
        for name, dtype, options in settings:
            number += 1
            for turn, layout in enumerate(LAYOUTS[processes]):
                always = layout == "mixed" if processes == 2 else name == settings[0][0]
                if always or (number + turn) % (2 if processes == 2 else 5) == 0:
                    yield f"{layout}-{stem}-{name}", case, options, layout, dtype
    for layout, stem, name, more in EIGHT_BIT[processes]:
        options = {**EIGHT, **more}
        yield f"{layout}-{stem}-{name}", CASES[stem], options, layout, torch.float32


def cell(rank: int, processes: int, name: str) -> None:
    """The job: one cell of the matrix, by its id."""
    for each, case, options, layout, dtype in cells(processes):
        if each == name:
            check(case, options, Layout(layout, processes), dtype)
            return
    raise KeyError(name)
