"""The lists backend remembers the places of rows, only for tensors that are the same in all that they depend on."""

from dataclasses import replace

import torch

from ingot.backends.matrices import matrices
from ingot.optim import NpuFusedAdamP


def make_bucket():
    param = torch.ones(4, 3, requires_grad=True)
    param.grad = torch.ones(4, 3)
    optimizer = NpuFusedAdamP([param], backend="lists")
    return optimizer._plan()[0]


def test_the_same_shapes_have_the_same_rows():
    bucket = make_bucket()
    assert matrices(bucket)[0] is matrices(bucket)[0]


def test_a_shard_of_another_whole_gets_other_lengths():
    bucket = make_bucket()
    wider = replace(bucket, shapes=[torch.Size((4, 12))])  # the local part stays (4, 3)
    lengths = torch.stack([matrices(each)[0].rows.row.root_n[0] for each in (bucket, wider)])
    torch.testing.assert_close(lengths, torch.tensor([3.0, 12.0]).sqrt().to(lengths))
