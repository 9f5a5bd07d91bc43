"""Small trainings and a digest of what each leaves: optimizers x options x storage x layouts x sharding x backends.

::

    python tests/recorded_runs.py                  # compare with tests/recorded_runs.json, print what differs
    python tests/recorded_runs.py --write          # record it again
    python tests/recorded_runs.py --every --write --file every.json       # all cells, for this machine
    python tests/recorded_runs.py --every --file every.json               # with another version, same machine

A digest is the beginning of the sha256 of the names, types, shapes and bytes of all parameters, states and step
counts, and of the norm where gradients are clipped. Numbers are integers modulo a prime over powers of two; betas are
such that their powers and 1 - beta^t are exact. So no random generator and no function of libm is in them.

Not every cell is recorded. Where sums, roots in float64 or fused multiplications are made by torch's own kernels, last
bits belong to torch and the processor. ``is_promised`` says which cells are the same on every x86 and arm machine:

- ``native``: all, but what torch adds up between the passes over shards;
- ``reference``: elementwise optimizers without clipping, in float64 without roots; LAMB with ``adam``, AdamP with
  ``delta=0``, where both passes run and no sum reaches a result;
- ``lists``: SGD without weight decay, because every operation on these numbers is exact.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from ingot import optim

HERE = Path(__file__).parent
FILE = HERE / "recorded_runs.json"
# Vector bodies and tails; the last three are large enough for 8-bit states, one of them ends with a part of a block.
SHAPES = [(5, 7), (64, 33), (8, 3, 3, 3), (), (70, 64), (67, 65), (16, 32, 3, 3)]
RATES = [1 / 64, 1 / 64, 1 / 32, 1 / 128]  # one per step
MISSING = (2, 1)  # in this step this parameter has no gradient
PROCESSES = 2  # of more, gloo decides the order of sums

USUAL: dict[str, dict[str, Any]] = {
    "Adadelta": {"rho": 0.75},
    **{name: {"betas": (0.5, 0.75)} for name in ("Adam", "AdamP", "AdamW", "Lamb")},
    "BertAdam": {"b1": 0.5, "b2": 0.75, "max_grad_norm": -1},
    **{name: {"alpha": 0.75} for name in ("RMSprop", "RMSpropTF")},
    "SGD": {"momentum": 0.5},
}
CLIPPED = {"max_grad_norm": 0.5}
DECAY = {"weight_decay": 0.01}
OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "plain"): {} for name in USUAL},
    ("Adadelta", "decay"): {**DECAY, "maximize": True},
    ("Adam", "amsgrad"): {**DECAY, "amsgrad": True},
    ("Adam", "clipped"): CLIPPED,
    ("AdamP", "plain"): {**DECAY, "delta": 0.0},
    ("AdamP", "projected"): {**DECAY, "delta": 1.9},
    ("AdamP", "nesterov"): {"nesterov": True, "amsgrad": True, "maximize": True},
    ("AdamP", "clipped"): CLIPPED,
    ("AdamW", "amsgrad"): {"amsgrad": True, "maximize": True},
    ("AdamW", "clipped"): {**CLIPPED, "weight_decay": 0},
    ("BertAdam", "amsgrad"): {"amsgrad": True, "t_total": 8, "warmup": 0.25},
    ("BertAdam", "clipped"): {**CLIPPED, "clip_scope": "global", "weight_decay": 0},
    ("Lamb", "plain"): {**DECAY, "adam": True},
    ("Lamb", "trusted"): DECAY,
    ("Lamb", "corrected"): {"bias_correction": True, "max_weight_norm": None, "maximize": True},
    ("Lamb", "clipped"): {"use_global_grad_norm": True},
    ("RMSprop", "centered"): {**DECAY, "centered": True, "momentum": 0.5},
    ("RMSprop", "clipped"): CLIPPED,
    ("RMSpropTF", "centered"): {"centered": True, "momentum": 0.5, "lr_in_momentum": False},
    ("RMSpropTF", "decoupled"): {**DECAY, "momentum": 0.5, "decoupled_decay": True},
    ("SGD", "nesterov"): {"nesterov": True, "maximize": True},
    ("SGD", "decay"): {**DECAY, "dampening": 0.5},
    ("SGD", "clipped"): CLIPPED,
}

STOCHASTIC = {"rounding": "stochastic", "rounding_seed": 7}
STORAGE: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float32_bfloat16": (torch.float32, {"state_dtype": torch.bfloat16}),
    "float32_8bit": (torch.float32, {"state_dtype": "8bit"}),
    "float32_8bit_stochastic": (torch.float32, {"state_dtype": "8bit", **STOCHASTIC}),
    "bfloat16": (torch.bfloat16, {}),
    "bfloat16_stochastic": (torch.bfloat16, {"state_dtype": "param", **STOCHASTIC}),
    "bfloat16_master": (torch.bfloat16, {"master_weights": True}),
    "bfloat16_master_8bit": (torch.bfloat16, {"master_weights": True, "state_dtype": "8bit"}),
    "float16": (torch.float16, {"state_dtype": "param"}),
    "float64": (torch.float64, {}),
}
FEW = ["float32", "bfloat16_stochastic", "float32_8bit"]  # in all layouts
LAYOUTS = ["contiguous", "transposed", "channels_last", "sliced", "sharded"]
BACKENDS = ["native", "reference", "lists"]


class Cell(NamedTuple):
    """One training."""

    backend: str
    optimizer: str
    options: str
    storage: str
    layout: str

    @property
    def name(self) -> str:
        """As in the file and in the names of tests."""
        return "-".join(self)

    @property
    def is_promised(self) -> bool:
        """Whether the bits are the same on every machine; see the top of this file."""
        plain = self.optimizer not in ("AdamP", "Lamb") or self.options == "plain"
        by_element = plain and self.options != "clipped"
        if self.backend == "native":
            return by_element or self.layout != "sharded"
        if self.backend == "reference":
            return by_element and (self.storage != "float64" or self.optimizer == "SGD")
        exact = self.optimizer == "SGD" and self.options in ("plain", "nesterov")
        return exact and "8bit" not in self.storage


def cells() -> list[Cell]:
    """All of them: every set of options in every storage, some in every layout."""
    found = []
    for backend, (optimizer, options), storage in itertools.product(BACKENDS, OPTIONS, STORAGE):
        everywhere = storage == "float32" or (storage in FEW and options == "plain")
        layouts = LAYOUTS if everywhere else LAYOUTS[:1]
        found += [Cell(backend, optimizer, options, storage, layout) for layout in layouts]
    return found


@cache
def numbers(shape: tuple[int, ...], salt: int) -> Tensor:
    """Multiples of 1/1024 below 2, in float64; seven digits each, so that every type holds them."""
    count = torch.Size(shape).numel()
    index = torch.arange(count, dtype=torch.int64) + 1000 * salt
    digits = (index * index * 31 + index * 17 + salt) % 251 - 125
    power = (index * 13 + salt) % 5
    return (digits.double() / (64 * 2**power).double()).reshape(shape)


def laid_out(value: Tensor, layout: str) -> Any:
    """The same numbers elsewhere: dimensions reversed in memory, channels last, every second of a larger tensor."""
    if layout == "transposed":
        backwards = [*reversed(range(value.ndim))]
        return value.permute(backwards).contiguous().permute(backwards)
    if layout == "channels_last" and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    if layout == "sliced" and value.ndim:
        room = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1] + 3))
        return room[..., 1 : 1 + 2 * value.shape[-1] : 2].copy_(value)
    return shard(value) if layout == "sharded" else value.clone()


def shard(value: Tensor) -> Any:
    """Split along dim 0 or 1 (33 columns), or whole in every process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placement = Shard(int(value.shape[1] == 33)) if value.ndim == 2 else Replicate()
    mesh = init_device_mesh("cpu", (PROCESSES,))
    return distribute_tensor(value, mesh, [placement], src_data_rank=None)


def trained(cell: Cell) -> tuple[Any, list[Any]]:
    """An optimizer and its parameters after all steps."""
    dtype, kept = STORAGE[cell.storage]
    params = [
        Parameter(laid_out(numbers(shape, salt).to(dtype), cell.layout))
        for salt, shape in enumerate(SHAPES)
    ]
    options = {**USUAL[cell.optimizer], **OPTIONS[cell.optimizer, cell.options], **kept}
    kind = getattr(optim, f"NpuFused{cell.optimizer}")
    optimizer = kind(params, lr=RATES[0], backend=cell.backend, **options)
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        # Gradients have the layout of the parameter, as autograd makes them, but once.
        layout = "contiguous" if step == 1 and cell.layout != "sharded" else cell.layout
        for salt, param in enumerate(params):
            value = numbers(SHAPES[salt], 50 + 10 * step + salt).to(dtype)
            param.grad = None if (step, salt) == MISSING else laid_out(value, layout)
        optimizer.step()
    return optimizer, params


def digest(cell: Cell) -> str:
    """Of all that a training leaves in this process."""
    total = hashlib.sha256()
    optimizer, params = trained(cell)
    for param in params:
        for name, value in [("param", param), *sorted(optimizer.state[param].items())]:
            if isinstance(value, Tensor):
                value = getattr(value, "_local_tensor", value).detach().contiguous()
                total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
            else:
                total.update(f"{name} {value}".encode())
    norm = optimizer.grad_norm
    total.update(f"norm {None if norm is None else float(norm)}".encode())
    return total.hexdigest()[:24]


def digests_here(rank: int, chosen: list[tuple[str, ...]]) -> list[str]:
    """Of shards in this process, half as long."""
    return [digest(Cell(*cell))[:12] for cell in chosen]


def digests(chosen: Sequence[Cell], run: Callable[..., list[Any]]) -> dict[str, str]:
    """The digest of every cell, by name; ``run`` makes those over shards, in processes of their own."""
    found = {cell.name: digest(cell) for cell in chosen if cell.layout != "sharded"}
    if sharded := [cell for cell in chosen if cell.layout == "sharded"]:
        of_processes = run(digests_here, [tuple(cell) for cell in sharded])
        for cell, *parts in zip(sharded, *of_processes, strict=True):
            found[cell.name] = " ".join(parts)
    return found


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description="Compare small trainings with recorded ones.")
    parser.add_argument("--write", action="store_true", help="record them")
    parser.add_argument("--every", action="store_true", help="also cells that belong to a machine")
    parser.add_argument("--file", type=Path, default=FILE, help="where they are recorded")
    asked = parser.parse_args()
    sys.path.insert(0, str(HERE / "distributed"))
    import processes

    chosen = [cell for cell in cells() if asked.every or cell.is_promised]
    found = digests(chosen, partial(processes.run, PROCESSES))
    if asked.write:
        asked.file.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{len(found)} cells written to {asked.file}")
        return
    recorded = json.loads(asked.file.read_text(encoding="utf-8"))
    names = sorted(found.keys() | recorded.keys())
    wrong = [name for name in names if found.get(name) != recorded.get(name)]
    print(*wrong, f"{len(wrong)} of {len(names)} cells differ", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
