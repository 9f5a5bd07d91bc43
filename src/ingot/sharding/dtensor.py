"""DTensor: the local part of a tensor, over which processes it is split, and whether two are laid out alike."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

ProcessGroups = tuple[Any, ...]  # process groups, one per dimension of a mesh


class Split(NamedTuple):
    """The process groups over which a tensor is split; none of them: it is whole in this process."""

    rows: ProcessGroups = ()  # along dim 0: every process has some of the rows
    parts: ProcessGroups = ()  # along another dimension: every process has a part of each row

    @property
    def groups(self) -> ProcessGroups:
        """All of them."""
        return self.rows + self.parts


WHOLE = Split()


def is_dtensor(tensor: Tensor) -> bool:
    """Without importing torch.distributed, which takes longer than the rest of this package."""
    if type(tensor) is Tensor or type(tensor) is Parameter:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor; any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    if type(part) is not Tensor:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        if isinstance(part, AsyncCollectiveTensor):  # its collective is still under way
            part = part.wait()
    return part


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """A DTensor laid out like another, with this local part; ``part`` itself where the other is none."""
    if not is_dtensor(tensor):
        return part
    from torch.distributed.tensor import DTensor

    whole: DTensor = tensor  # type: ignore[assignment]
    return DTensor.from_local(
        part,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=torch.empty(whole.shape, device="meta").stride(),
    )


def split_of(tensor: Tensor) -> Split:
    """Over which process groups a tensor is split. Groups of one process do not count."""
    if not is_dtensor(tensor):
        return WHOLE
    whole: DTensor = tensor  # type: ignore[assignment]
    mesh = whole.device_mesh
    if mesh.get_coordinate() is None:  # this process is not part of the mesh and holds nothing
        return WHOLE
    rows: list[Any] = []
    parts: list[Any] = []
    for mesh_dim, placement in enumerate(whole.placements):
        # Not placement.is_shard(): in torch 2.13 that is False for the _StridedShard of FSDP2 with tensor parallel.
        if placement.is_replicate() or placement.is_partial() or mesh.size(mesh_dim) == 1:
            continue
        dim: int = placement.dim  # type: ignore[attr-defined]
        (parts if dim % whole.ndim else rows).append(mesh.get_group(mesh_dim))
    return Split(tuple(rows), tuple(parts))


def splits_of(tensors: Iterable[Tensor]) -> list[Split]:
    """The same for many tensors; process groups are looked up once per kind of layout."""
    known: dict[Any, Split] = {}
    result = []
    for tensor in tensors:
        if not is_dtensor(tensor):
            result.append(WHOLE)
            continue
        spec: Any = tensor._spec  # type: ignore[attr-defined]
        kind = id(spec.mesh), spec.placements, tensor.ndim
        if kind not in known:
            known[kind] = split_of(tensor)
        result.append(known[kind])
    return result


def check(where: object, param: Tensor, other: Tensor) -> None:
    """A gradient or state must be laid out over the processes as its parameter is; ``where`` begins the message."""
    if not is_dtensor(param) and not is_dtensor(other):
        return
    if not (is_dtensor(param) and is_dtensor(other)):
        raise RuntimeError(
            f"{where}: a {type(param).__name__} parameter goes with a {type(other).__name__}; "
            "both must be DTensors or neither"
        )
    one: DTensor = param  # type: ignore[assignment]
    two: DTensor = other  # type: ignore[assignment]
    if any(p.is_partial() for p in (*one.placements, *two.placements)):
        raise RuntimeError(
            f"{where}: the partial placements of {one.placements} with {two.placements} hold "
            "summands, not values; redistribute to Replicate or Shard before the step"
        )
    if one.device_mesh != two.device_mesh or one.placements != two.placements:
        raise RuntimeError(
            f"{where}: placed as {one.placements} on {one.device_mesh}, but goes with {two.placements} "
            f"on {two.device_mesh}"
        )


class Specs:
    """The layouts of the owners of a bucket, against which those of gradients and states are checked in each step.

    torch shares one spec object among many tensors. A spec that was found to fit is recognised by its identity.
    """

    def __init__(self, owners: Sequence[Tensor]) -> None:
        self.specs = [spec_of(owner) for owner in owners]
        # Keys are identities. The specs are kept as values, so that no other object can get the same identity.
        self.fitting: dict[tuple[int, int], tuple[Any, Any]] = {}

    @staticmethod
    def of(owners: Sequence[Tensor]) -> Specs | None:
        """None where no owner is a DTensor."""
        return Specs(owners) if any(map(is_dtensor, owners)) else None

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The local parts of one tensor per owner; None if one is not laid out as its owner was."""
        parts = []
        for tensor, spec in zip(tensors, self.specs, strict=True):
            found = getattr(tensor, "_spec", None)
            if found is not spec and not self._fits(found, spec):
                return None
            parts.append(tensor if found is None else tensor._local_tensor)  # type: ignore[attr-defined]
        return parts

    def _fits(self, found: Any, spec: Any) -> bool:
        """Whether two specs lay tensors out alike, whatever the type of these."""
        if (id(found), id(spec)) in self.fitting:
            return True
        if found is None or spec is None:
            return False
        fits = bool(found.placements == spec.placements and found.mesh == spec.mesh)
        if fits and len(self.fitting) < 8 * len(self.specs):
            self.fitting[id(found), id(spec)] = found, spec
        return fits


def spec_of(tensor: Tensor) -> Any:
    """The layout of a DTensor; None for any other tensor."""
    return tensor._spec if is_dtensor(tensor) else None  # type: ignore[attr-defined]


def has_double(device: torch.device) -> bool:
    """Whether a device is known to compute in double precision."""
    return device.type in ("cpu", "cuda")


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Sums are kept in double precision where the device is known to have it."""
    return sum_dtype_of([(tensor.device, tensor.dtype)])


def sum_dtype_of(kinds: Iterable[tuple[torch.device, torch.dtype]]) -> torch.dtype:
    """The same for sums over tensors on these devices and of these types; double precision for none."""
    double = all(has_double(device) or dtype is torch.float64 for device, dtype in kinds)
    return torch.float64 if double else torch.float32
