"""Whether strided tensors share memory, and how much of it finding that out takes."""

from __future__ import annotations

from itertools import product
from operator import mul
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ingot.step.overlap import overlaps_itself, share_memory


class Largest(TorchDispatchMode):
    """Notes the most bytes that an operator returns."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operator comes by here."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.bytes = max(self.bytes, result.untyped_storage().nbytes())
        return result


TYPES = [torch.float32, torch.bfloat16, torch.uint8]


@pytest.mark.parametrize("one", TYPES, ids=str)
@pytest.mark.parametrize("two", TYPES, ids=str)
@pytest.mark.parametrize("shift", range(9))
def test_whether_tensors_share_a_byte(one: torch.dtype, two: torch.dtype, shift: int) -> None:
    """Against the set of the bytes of each; nothing made for it is larger than what they lie in."""
    raw = torch.zeros(1200, dtype=torch.uint8)
    shapes = [((40,), (1,)), ((6, 4), (12, 1)), ((6, 4), (1, 12)), ((5, 1, 3), (9, 5, 2))]
    shapes += [((), ()), ((30,), (4,)), ((7, 5), (8, 0))]
    found = set()
    for left, right in product(shapes, repeat=2):
        pair = raw.view(one).as_strided(*left), raw.view(two).as_strided(*right, shift)
        used = [set(bytes_of(tensor)) for tensor in pair]
        with Largest() as largest:
            shared = share_memory(*pair)
        assert shared == bool(used[0] & used[1]), (left, right)
        assert largest.bytes <= len(raw)
        found.add(shared)
    assert True in found


def bytes_of(tensor: Tensor) -> list[int]:
    """The addresses of all bytes of a strided tensor."""
    places = product(*map(range, tensor.shape))
    size, first = tensor.element_size(), tensor.data_ptr()
    elements = [sum(map(mul, place, tensor.stride())) for place in places]
    return [first + element * size + byte for element in elements for byte in range(size)]


def test_elements_and_not_bytes_are_looked_at() -> None:
    """Where the tensors have elements of one size, a byte of memory is enough for each of them."""
    matrix = torch.zeros(1000, 20)
    left, middle, right = matrix[:, :10], matrix[:, 5:15], matrix[:, 10:]
    apart = matrix.as_strided((100, 2, 3), (8, 3, 2))
    tangled = matrix.as_strided((100, 3, 3), (8, 3, 2))
    with Largest() as largest:
        assert not share_memory(left, right)
        assert share_memory(left, middle) and share_memory(middle, right)
        assert not overlaps_itself(apart) and overlaps_itself(tangled)
    assert largest.bytes <= matrix.numel()
