"""Every backend writes the codes and scales of the reference, for all optimizers, to nearest and stochastically."""

from __future__ import annotations

import pytest
import torch
from eight_bit_backends import TAKING
from torch import Tensor

from cases import Case, Options, each_setting
from state_types import round_roots_correctly
from training import make_params, tensors_of, train

SHAPES = [(64, 70), (4, 8, 12, 12)]
# States whose new number comes out of a square root, which the other backends round correctly and `lists` does not.
OUT_OF_ROOTS = {"adadelta": "acc_delta", "rmsprop": "momentum_buffer"}
OUT_OF_ROOTS["rmsprop_tf"] = "momentum_buffer"
ON_BORDERS = 0.001  # of the numbers of such a state, at most, lie between two codes to seven digits

each_other_backend = pytest.mark.parametrize("backend", [b for b in TAKING if b != "reference"])
each_rounding = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


def states(case: Case, options: Options, rounding: str, backend: str) -> dict[str, Tensor]:
    """The codes, scales and parameters after some steps."""
    options = {**options, "state_dtype": "8bit", "rounding": rounding, "backend": backend}
    params = make_params(SHAPES)
    optimizer = case.make(params, **options)
    train(optimizer, params, 4)
    return tensors_of(optimizer)


@each_setting
@each_rounding
@each_other_backend
def test_codes_and_scales_are_those_of_the_reference(
    case: Case, options: Options, rounding: str, backend: str
) -> None:
    """All codes, and every scale, to the last bit, but for what is behind the roots of `lists`.

    `lists` takes roots with torch's kernel, which on a CPU rounds some float32 to the wrong neighbour: one in a hundred
    or one in five, depending on the processor. Where a state is computed from a root, that is a rounding or two in its
    largest number, which is the scale, and another code for a number on the border between two, to seven digits.
    """
    ours = states(case, options, rounding, backend)
    theirs = states(case, options, rounding, "reference")
    assert list(ours) == list(theirs)
    inexact = OUT_OF_ROOTS.get(case.name, "none") if backend == "lists" else "none"
    for name, value in ours.items():
        if name.startswith("param "):
            continue
        if not name.startswith(inexact):
            assert torch.equal(value, theirs[name]), name
        elif name.startswith(inexact + "_scale"):
            torch.testing.assert_close(value, theirs[name], rtol=5e-7, atol=0, msg=name)
        else:
            apart = (value.float() - theirs[name].float()).abs()
            assert apart.max() <= 1 and apart.count_nonzero() <= ON_BORDERS * apart.numel(), name


@each_setting
@each_rounding
def test_roots_are_all_that_lists_computes_otherwise(
    case: Case, options: Options, rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With correctly rounded roots in their place nothing differs: the reason above is the whole reason."""
    theirs = states(case, options, rounding, "reference")
    round_roots_correctly(monkeypatch)
    ours = states(case, options, rounding, "lists")
    coded = any(value.dtype in (torch.int8, torch.uint8) for value in ours.values())
    for name, value in ours.items():
        # Sums over tensors may be added up in another order, and SGD without a state rounds to float32 as ever.
        if not name.startswith("param ") or (coded and case.kind.spec.finish is None):
            assert torch.equal(value, theirs[name]), name
