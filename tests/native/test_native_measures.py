"""Norms and scaling over lists of tensors of any type and layout, and the memory floor."""

from __future__ import annotations

import math

import pytest
import torch
from native_buckets import make_bucket

from ingot.backends.native import NATIVE, core, floor

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def mixed() -> list[torch.Tensor]:
    """Tensors of all types, consecutive and not, large and empty."""
    tensors = [torch.randn(s).to(t) for t in TYPES for s in [(), (0,), (63,), (65, 3), (70001,)]]
    return [
        *tensors,
        torch.randn(40, 30).t(),
        torch.randn(9, 1).expand(9, 50),
        torch.randn(99)[::2],
    ]


def test_squares() -> None:
    """In double precision: exact to its rounding, without overflow where float32 squares have it."""
    tensors = mixed()
    expected = sum(float(t.double().square().sum()) for t in tensors)
    value = NATIVE.squares(tensors)
    assert value is not None and math.isclose(value, expected, rel_tol=1e-13)
    assert NATIVE.squares([torch.full((3,), 1e30)]) == 3 * float(torch.tensor(1e30)) ** 2
    assert NATIVE.squares([]) == 0.0
    with pytest.raises(ValueError, match="its type is not"):
        core.squares([torch.zeros(3, dtype=torch.int64)])


def test_squares_do_not_depend_on_the_layout() -> None:
    """The same bits for the same numbers: in place, through tiles, alone or as the gradients of a bucket."""
    values = torch.randn(70001)
    strided = torch.empty(70001, 2)[:, 0].copy_(values)
    expected = NATIVE.squares([values])
    assert expected is not None and expected == NATIVE.squares([strided])
    for name in ("adamw", "lamb"):
        bucket = make_bucket(name, [torch.zeros(70001)], [values])
        assert NATIVE.prepare(bucket) is None
        assert NATIVE.grad_norms(bucket) == expected


def test_largest() -> None:
    """The largest magnitude; NaN wins over everything."""
    tensors = mixed()
    expected = max(float(t.double().abs().max()) for t in tensors if t.numel())
    assert NATIVE.largest(tensors) == expected
    assert NATIVE.largest([torch.tensor([1.0, -math.inf])]) == math.inf
    assert math.isnan(
        NATIVE.largest([torch.tensor([1.0, math.nan]), torch.tensor([math.inf])]) or 0
    )
    assert NATIVE.largest([]) == 0.0


def test_scale() -> None:
    """In place, rounded once to the type of the tensor; nothing changes if one cannot be taken."""
    tensors = [t for t in mixed() if t.stride() != (1, 0)]
    expected = [
        (t.double() * float(torch.tensor(0.3, dtype=torch.float64))).to(t.dtype)
        if t.dtype is torch.float64
        else (t.float() * 0.3).to(t.dtype)
        for t in tensors
    ]
    versions = [t._version for t in tensors]
    NATIVE.scale_(tensors, torch.tensor(0.3, dtype=torch.float64))
    for tensor, wanted, version in zip(tensors, expected, versions, strict=True):
        assert torch.equal(tensor, wanted)
        assert tensor._version > version
    kept = torch.ones(3)
    with pytest.raises(ValueError, match="share memory"):
        core.scale([kept, torch.ones(1).expand(3)], 2.0)
    assert torch.equal(kept, torch.ones(3))


def test_floor_changes_nothing() -> None:
    """The memory floor reads and writes, and every bit is as before."""
    lists = [[torch.randn(1000), torch.randn(70000)] for _ in range(4)]
    before = [[t.clone() for t in tensors] for tensors in lists]
    floor(lists, [lists[0], lists[2], lists[3]])
    for tensors, copies in zip(lists, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))


def test_floor_reads_everything() -> None:
    """With another mask than 0, what is written shows that every word was read: a load cannot have been dropped."""
    for reads in (1, 2):
        read = [torch.randint(2**31, (999,), dtype=torch.int32) for _ in range(reads)]
        written = [torch.randint(2**31, (999,), dtype=torch.int32) for _ in range(3)]
        mixed = read[0] if reads == 1 else read[0] ^ read[1]
        expected = [words ^ ~mixed for words in written]
        lists = [[[words.view(torch.float32)] for words in each] for each in (read, written)]
        core.floor(*lists, 2**32 - 1)
        for words, wanted in zip(written, expected, strict=True):
            assert torch.equal(words, wanted)


def test_what_is_there_twice_is_scaled_twice() -> None:
    """As torch's list operators do, and without two threads in the same memory."""
    tensor = torch.ones(100_000)
    NATIVE.scale_([tensor, tensor, tensor[:50_000]], torch.tensor(0.5))
    assert torch.equal(tensor[:50_000], torch.full((50_000,), 0.125))
    assert torch.equal(tensor[50_000:], torch.full((50_000,), 0.25))
