"""What kernels are told about tensors is the same whether the native core reads them or Python does."""

import pytest
import torch
from torch import Tensor

from ingot.backends import NATIVE
from ingot.backends.triton_kernels import layout

if NATIVE.unavailable() is not None:
    pytest.skip("there is no native core to compare with", allow_module_level=True)

LAST = torch.channels_last
IMAGES = torch.randn(4, 3, 5, 5)
MATRIX = torch.randn(6, 8)
LISTS: dict[str, list[list[Tensor]]] = {
    "contiguous": [[MATRIX, torch.ones(())], [MATRIX.clone(), torch.ones(())]],
    "views of other memory": [[MATRIX[1:3], MATRIX[2]], [MATRIX[3:5], MATRIX[4]]],
    "empty": [[torch.ones(0, 4), MATRIX], [torch.ones(0, 4), MATRIX]],
    "channels_last": [[IMAGES.to(memory_format=LAST)], [IMAGES.to(memory_format=LAST)]],
    "two orders": [[IMAGES.to(memory_format=LAST)], [IMAGES]],
    "two orders, other way round": [[IMAGES], [IMAGES.to(memory_format=LAST)]],
    "transposed": [[MATRIX.T], [MATRIX.clone().T]],
    "gaps": [[MATRIX[:, ::2]], [MATRIX[:, ::2]]],
    "gaps in one": [[MATRIX[:, ::2].contiguous()], [MATRIX[:, ::2]]],
    "overlapping": [[torch.ones(1, 3).expand(4, 3)], [torch.ones(4, 3)]],
    "strides of dimensions of length 1": [
        [torch.as_strided(MATRIX, (1, 8), (99, 1))],
        [MATRIX[:1].T.reshape(8, 1).T],
    ],
    "codes and scales": [[MATRIX], [MATRIX.to(torch.int8)], [torch.ones(1)]],
    "codes beside another order": [[MATRIX.T], [MATRIX.T.to(torch.int8)], [torch.ones(1)]],
}
NOTHING = {
    "two orders",
    "two orders, other way round",
    "gaps",
    "gaps in one",
    "overlapping",
    "codes beside another order",
}


@pytest.mark.parametrize("kind", LISTS)
def test_without_the_core(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = LISTS[kind]
    read = layout.find_addresses(lists)
    monkeypatch.setattr(type(NATIVE), "unavailable", lambda self: "switched off")
    assert layout.find_addresses(lists) == read
    if kind in NOTHING:
        assert read is None
        return
    assert read is not None
    pointers = layout.numbers_of(read.pointers).tolist()
    assert pointers == [tensor.data_ptr() for tensors in lists for tensor in tensors]
    assert layout.numbers_of(read.sizes).tolist() == [tensor.numel() for tensor in lists[0]]
