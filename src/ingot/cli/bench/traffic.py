"""`ingot bench --parts traffic`: bytes moved, operators launched and waits per step, counted instead of timed.

What is counted on the CPU holds for any device that runs the same operators, so that implementations can be compared
for accelerators without one. Large tensors are taken in the rounds of an accelerator.
"""

from __future__ import annotations

import csv
import gc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from rich.table import Table
from torch.nn import Parameter

from ingot.backends import operands
from ingot.backends.native import NATIVE
from ingot.cli.bench import peers
from ingot.cli.bench.peers import TITLES, Contestant
from ingot.cli.bench.picture import LINE, OURS, THEIRS
from ingot.cli.bench.show import Show
from ingot.cli.bench.traffic_counter import kept, measure

LISTS = {"1000 of (16, 64)": [(16, 64)] * 1000, "8 of (1024, 1024)": [(1024, 1024)] * 8}
# Bytes per float32 parameter if every operand were moved once. LAMB and AdamP read the parameter and the averages a
# second time, after their sums; BertAdam reads the gradient a second time, for its norm.
IDEAL = {"sgd": 20, "lamb": 40, "adamp": 40, "bert_adam": 32}
IDEAL |= dict.fromkeys(["adamw", "adam", "adadelta", "rmsprop", "rmsprop_tf"], 28)


@dataclass
class Count:
    """One implementation of one optimizer on one list of tensors."""

    optimizer: str
    shapes: str
    contestant: str
    version: str
    bytes_per_parameter: float
    operators: int
    waits: int
    kept_per_parameter: float | None = None  # ours only: bytes in buffers, beside the states


def run_traffic(optimizers: Sequence[str], show: Show) -> list[Count]:
    """Count every implementation of every optimizer that works with torch operators."""
    counts: list[Count] = []
    with as_on_an_accelerator():
        for optimizer in optimizers:
            show.stage(f"traffic: {TITLES[optimizer]}")
            for contestant in field_of(optimizer):
                counts += count(contestant, optimizer, show)
            for shapes in LISTS:
                counts.append(Count(optimizer, shapes, "ideal", "", IDEAL[optimizer], 1, 0))
    return counts


def field_of(optimizer: str) -> list[Contestant]:
    """Ours and all others but those with kernels of their own, of which nothing can be counted."""
    ours = [peers.ours(optimizer, backend) for backend in ("lists", "reference")]
    return ours + [each for each in peers.peers(optimizer) if each.package != "deepspeed"]


@contextmanager
def as_on_an_accelerator() -> Iterator[None]:
    """Without the native core, which measures norms on the CPU, and in the rounds of a device with much memory."""
    rounds, unavailable = operands.ROUND_ON_CPU, type(NATIVE).unavailable
    operands.ROUND_ON_CPU = operands.ROUND
    type(NATIVE).unavailable = lambda self: "counting torch operators"  # type: ignore[method-assign]
    try:
        yield
    finally:
        operands.ROUND_ON_CPU = rounds
        type(NATIVE).unavailable = unavailable  # type: ignore[method-assign]


def count(contestant: Contestant, optimizer: str, show: Show) -> Iterator[Count]:
    """The counts of one implementation, on every list."""
    assert contestant.build is not None
    for name, shapes in LISTS.items():
        params = [Parameter(torch.randn(shape)) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made: Any = contestant.build(params)
                traffic = measure(made.step)
        except Exception as error:  # whatever a stranger's package raises
            if contestant.ours:
                raise
            show.missing(contestant.name, (str(error) or type(error).__name__).splitlines()[0])
            return
        elements = sum(param.numel() for param in params)
        yield Count(
            optimizer,
            name,
            contestant.name,
            contestant.version,
            round(traffic.total / elements, 2),
            traffic.operators,
            traffic.waits,
            round(kept(made) / elements, 2) if contestant.ours else None,
        )
        del made, params
        gc.collect()


def traffic_table(counts: Sequence[Count]) -> Table:
    """One line per implementation."""
    table = Table(title="Traffic of a steady float32 step, counted", title_justify="left")
    table.add_column("")
    for name in LISTS:
        table.add_column(f"bytes per parameter,\n{name}", justify="right")
    for heading in ("operators,\n1000 tensors", "waits,\n1000 tensors"):
        table.add_column(heading, justify="right")
    for optimizer in dict.fromkeys(each.optimizer for each in counts):
        table.add_section()
        table.add_row(f"[bold]{TITLES[optimizer]}")
        for small, large in pairs(counts, optimizer):
            known = small.contestant != "ideal"
            table.add_row(
                f"  {small.contestant}",
                f"{small.bytes_per_parameter:.0f}",
                f"{large.bytes_per_parameter:.0f}",
                str(small.operators) if known else "",
                str(small.waits) if known else "",
            )
    return table


def pairs(counts: Sequence[Count], optimizer: str) -> list[tuple[Count, Count]]:
    """The counts of each implementation on both lists."""
    small, large = LISTS
    found = {(each.contestant, each.shapes): each for each in counts if each.optimizer == optimizer}
    names = dict.fromkeys(name for name, _ in found)
    return [(found[n, small], found[n, large]) for n in names if (n, large) in found]


def draw_traffic(
    counts: Sequence[Count], circumstances: Mapping[str, str], path: Path
) -> Path | None:
    """Bytes per parameter as bars, operators of 1000 tensors beside them."""
    optimizers = [name for name in TITLES if any(each.optimizer == name for each in counts)]
    if not optimizers:
        return None
    columns = min(3, len(optimizers))
    height = -(-len(optimizers) // columns)
    figure, panels = plt.subplots(
        height, columns, figsize=(4.6 * columns, 2.5 * height), layout="constrained", squeeze=False
    )
    for panel, optimizer in zip(panels.flat, optimizers, strict=False):
        draw_bars(panel, optimizer, pairs(counts, optimizer))
    for panel in list(panels.flat)[len(optimizers) :]:
        panel.set_visible(False)
    figure.suptitle(
        "Bytes per parameter that a steady float32 step reads and writes (8 tensors of 1024 x 1024), counted, and the "
        f"operators of 1000 tensors\ntorch {circumstances['torch']}, ingot "
        f"{circumstances['commit'] or circumstances['ingot']}, {circumstances['date'][:10]}",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_bars(panel: Any, optimizer: str, both: Sequence[tuple[Count, Count]]) -> None:
    """One optimizer."""
    names = [small.contestant for small, _ in both]
    values = [large.bytes_per_parameter for _, large in both]
    colors = [
        OURS if name.startswith("ingot") else LINE if name == "ideal" else THEIRS for name in names
    ]
    panel.barh(names, values, color=colors)
    for place, (small, large) in enumerate(both):
        text = f" {large.bytes_per_parameter:.0f}"
        text += f"  ({small.operators} operators)" if small.contestant != "ideal" else ""
        panel.text(values[place], place, text, va="center", fontsize=7)
    panel.invert_yaxis()
    panel.set_xlim(0, max(values) * 1.65)
    panel.set_title(TITLES[optimizer], fontsize=10, loc="left")
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)


def write_traffic(path: Path, counts: Sequence[Count], circumstances: Mapping[str, str]) -> None:
    """The counts as CSV, with torch's version in every row."""
    names = [each.name for each in fields(Count)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*names, "torch", "date"], lineterminator="\n")
        writer.writeheader()
        for each in counts:
            row = {"torch": circumstances["torch"], "date": circumstances["date"][:10]}
            writer.writerow(asdict(each) | row)


def read_traffic(path: Path) -> tuple[list[Count], dict[str, str]]:
    """What :func:`write_traffic` has written, and the versions and the day; the file does not name a commit."""
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    counts = [
        Count(
            row["optimizer"],
            row["shapes"],
            row["contestant"],
            row["version"],
            float(row["bytes_per_parameter"]),
            int(row["operators"]),
            int(row["waits"]),
            float(row["kept_per_parameter"]) if row["kept_per_parameter"] else None,
        )
        for row in found
    ]
    ours = next((each.version for each in counts if each.contestant.startswith("ingot")), "")
    known = {"torch": found[0]["torch"], "date": found[0]["date"]} if found else {}
    return counts, {**known, "ingot": ours, "commit": ""}
