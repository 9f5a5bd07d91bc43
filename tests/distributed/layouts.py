"""Ways to lay a tensor out over processes, and the cutting of whole tensors into them, without communication."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import Parameter

ROWS, COLUMNS, COPIES = Shard(0), Shard(1), Replicate()
STRIDED = _StridedShard(
    0, split_factor=2
)  # what FSDP2 makes of rows that tensor parallelism has split

# Per number of processes: name of the layout, shape of the mesh, placements; a list is gone through in turns, so
# that neighbours in one group differ; None is an ordinary tensor.
LAYOUTS: dict[int, dict[str, tuple[tuple[int, ...], list[Any]]]] = {
    2: {
        "rows": ((2,), [(ROWS,)]),
        "columns": ((2,), [(COLUMNS,)]),
        "mixed": ((2,), [(ROWS,), None, (COLUMNS,), (COPIES,)]),
    },
    4: {
        "rows": ((4,), [(ROWS,)]),
        "copies_x_rows": ((2, 2), [(COPIES, ROWS)]),
        "rows_x_columns": ((2, 2), [(ROWS, COLUMNS)]),
        "strided": ((2, 2), [(STRIDED, ROWS)]),
        "mixed": (
            (2, 2),
            [(STRIDED, ROWS), (ROWS, COLUMNS), (ROWS, COPIES), None, (COLUMNS, ROWS)],
        ),
    },
}


@cache
def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    """One mesh per shape: process groups are made only once."""
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[: len(shape)])


class Layout:
    """Lays the parameters of a list out, each by its place in the list."""

    def __init__(self, name: str, processes: int) -> None:
        shape, self.choices = LAYOUTS[processes][name]
        self.mesh = mesh_of(shape)

    def placements(self, index: int, whole: Tensor) -> tuple[Placement, ...] | None:
        """Those of parameter ``index``; a dimension it lacks is replaced by the first, none by copies."""
        chosen = self.choices[index % len(self.choices)]
        if chosen is None or whole.ndim == 0:
            return None if chosen is None else (COPIES,) * self.mesh.ndim
        return tuple(ROWS if p == COLUMNS and whole.ndim == 1 else p for p in chosen)

    def cut(self, index: int, whole: Tensor) -> Tensor:
        """This process's part of parameter ``index`` or of what belongs to it."""
        placements = self.placements(index, whole)
        part = whole.detach()
        if placements is not None:
            coordinate = self.mesh.get_coordinate()
            assert coordinate is not None
            # A strided split comes last: FSDP2 cuts what tensor parallelism has cut.
            order = sorted(range(self.mesh.ndim), key=lambda dim: placements[dim] == STRIDED)
            for dim in order:
                if placements[dim] != COPIES:
                    part = chunk(part, placements[dim].dim, self.mesh.size(dim), coordinate[dim])
        return part.clone(memory_format=torch.contiguous_format)

    def lay_out(self, index: int, whole: Tensor) -> Tensor:
        """Parameter ``index`` (or its gradient) as a DTensor, or a copy of the ordinary tensor."""
        placements = self.placements(index, whole)
        part = self.cut(index, whole)
        if placements is None:
            return part
        return DTensor.from_local(
            part, self.mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def params(self, wholes: Sequence[Tensor]) -> list[Parameter]:
        """All parameters."""
        return [Parameter(self.lay_out(i, whole)) for i, whole in enumerate(wholes)]


def chunk(tensor: Tensor, dim: int, parts: int, index: int) -> Tensor:
    """Chunk ``index``, cut as DTensor cuts: the first ones are full, the last ones may be empty."""
    length = -(-tensor.shape[dim] // parts)
    start = min(index * length, tensor.shape[dim])
    return tensor.narrow(dim, start, min(length, tensor.shape[dim] - start))


def local(tensor: Tensor) -> Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
