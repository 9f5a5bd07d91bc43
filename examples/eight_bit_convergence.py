"""Trains a small transformer on Python's own source text with optimizer states in float32, bfloat16 and 8 bits.

    python examples/eight_bit_convergence.py             # 66 runs into out/eight_bit.csv, then draws out/eight_bit.png
    python examples/eight_bit_convergence.py --only AdamW --seeds 1 --steps 200 --results "" --output ""

Runs with the same seed begin with the same weights and see the same batches; only the format of the states differs.
Every run is added to the file of results, and a run that is in it is not made again, so the program can be
interrupted. To renew what docs/precision.md shows, give benchmarks/results/eight_bit.csv for --results (without the
runs that are to be made again) and docs/images/eight_bit.png for --output. The formats of bitsandbytes and torchao
take part with AdamW where these packages are installed.
"""

from __future__ import annotations

import argparse
import collections
import csv
import importlib.util
import math
import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from ingot.optim import NpuFusedAdamP, NpuFusedAdamW, NpuFusedLamb, NpuFusedSGD

WORDS, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 512, 64, 1, 4, 32, 8
FORMATS: dict[str, dict[str, Any]] = {
    "float32": {},
    "float32, other rounding errors": {},  # how far apart runs are that differ in nothing that matters
    "8bit": {"state_dtype": "8bit"},
    "8bit, stochastic": {"state_dtype": "8bit", "rounding": "stochastic"},
    "bfloat16": {"state_dtype": torch.bfloat16},
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": lambda params, **options: NpuFusedAdamW(params, lr=1e-3, weight_decay=0.1, **options),
    "LAMB": lambda params, **options: NpuFusedLamb(params, lr=1e-2, weight_decay=0.01, **options),
    "AdamP": lambda params, **options: NpuFusedAdamP(params, lr=1e-3, weight_decay=0.1, **options),
    "SGD": lambda params, **options: NpuFusedSGD(params, lr=0.3, momentum=0.9, **options),
}
PEERS = {"bitsandbytes": "bitsandbytes.optim", "torchao": "torchao.optim"}
COLUMNS = ("optimizer", "format", "seed", "steps", "loss")


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Batch x length x width."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        attended = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(gelu(self.up(self.second(x))))


class LanguageModel(nn.Module):
    """Predicts the next word; 0.12 million parameters in 17 tensors, 6 of them large enough for 8-bit states."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        for param in self.parameters():
            if param.ndim == 2:
                nn.init.normal_(param, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        """Batch x length x words."""
        return self.head(self.norm(self.blocks(self.words(words) + self.places.weight)))


def text() -> Tensor:
    """The standard library of this Python as numbers of its most frequent words; 0 stands for all others."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    source = "\n".join(file.read_text(encoding="utf8", errors="ignore") for file in files)
    words = re.findall(r"[A-Za-z_]+|\n *| +|[^A-Za-z_\s]", source)
    common = collections.Counter(words).most_common(WORDS - 1)
    numbers = {word: number for number, (word, _) in enumerate(common, 1)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def loss_of(model: nn.Module, words: Tensor, batch: int, random: torch.Generator) -> Tensor:
    """The mean loss over pieces of the text."""
    starts = torch.randint(len(words) - LENGTH - 1, (batch, 1), generator=random)
    pieces = words[starts + torch.arange(LENGTH + 1)]
    return cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def made(name: str, form: str, params: Iterable[Tensor]) -> torch.optim.Optimizer:
    """An optimizer, of this package or of one of the others."""
    if form in PEERS:
        kind = importlib.import_module(PEERS[form]).AdamW8bit
        return kind(
            params, lr=1e-3, weight_decay=0.1, **({"block_size": 256} if form == "torchao" else {})
        )
    return OPTIMIZERS[name](params, **FORMATS[form])


def train(words: Tensor, name: str, form: str, seed: int, steps: int) -> float:
    """The validation loss after some steps with warm-up and a cosine schedule."""
    torch.manual_seed(seed)
    model = LanguageModel()
    if "rounding errors" in form:
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(1 + 1e-6 * torch.randn_like(param))
    optimizer = made(name, form, model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1, (i + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * i / steps))),
    )
    known, unknown = words.split([int(len(words) * 0.95), len(words) - int(len(words) * 0.95)])
    random = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, known, BATCH, random).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        random = torch.Generator().manual_seed(5)
        return mean(float(loss_of(model, unknown, 64, random)) for _ in range(20))


def wanted(
    only: Sequence[str], formats: Sequence[str], seeds: int, steps: int
) -> list[tuple[str, str, int, int]]:
    """The runs to make, those with packages that are not installed left out."""
    absent = [peer for peer in PEERS if importlib.util.find_spec(peer) is None]
    for peer in absent:
        print(f"{peer} is not installed, its format is left out")
    return [
        (name, form, seed, steps)
        for name in only
        for form in formats
        if form not in absent and (form in FORMATS or name == "AdamW")
        for seed in range(seeds)
    ]


def differences(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By optimizer and format: the losses minus those of float32 with the same seed."""
    losses = {(row["optimizer"], row["format"], row["seed"]): float(row["loss"]) for row in rows}
    result: dict[str, dict[str, list[float]]] = {}
    for (name, form, seed), loss in losses.items():
        if form != "float32" and (name, "float32", seed) in losses:
            of_format = result.setdefault(name, {}).setdefault(form, [])
            of_format.append(loss - losses[name, "float32", seed])
    return result


def plot(rows: list[dict[str, Any]], output: Path) -> None:
    """One panel per optimizer, one line per format: a dot for every seed and a bar at the mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    every = differences(rows)
    found = {form for formats in every.values() for form in formats}
    shown = [form for form in (*FORMATS, *PEERS) if form in found]
    figure, panels = plt.subplots(
        1, len(every), figsize=(11, 3.6), sharex=True, sharey=True, squeeze=False
    )
    for panel, (name, formats) in zip(panels[0], every.items(), strict=True):
        panel.axvspan(-0.01, 0.01, color="0.92")
        panel.axvline(0, color="0.7", linewidth=1)
        for form, values in formats.items():
            line = shown.index(form)
            color = "tab:blue" if form.startswith("8bit") else "0.35"
            panel.plot(values, [line] * len(values), "o", color=color, alpha=0.6)
            panel.plot([mean(values)] * 2, [line - 0.3, line + 0.3], color=color, linewidth=3)
        base = [
            float(r["loss"]) for r in rows if (r["optimizer"], r["format"]) == (name, "float32")
        ]
        panel.set_title(f"{name}\nfloat32: {mean(base):.3f}", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set(yticks=range(len(shown)), yticklabels=shown, xticks=[-0.01, 0, 0.01])
    panels[0][0].invert_yaxis()
    figure.supxlabel(
        "validation loss minus that of float32 states with the same seed, a dot per seed, a bar at the mean"
        " (grey: within 0.01)",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(output, dpi=130)
    plt.close(figure)


def main() -> None:
    """Make the runs that are not there yet, print what each format reaches, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    every = [*FORMATS, *PEERS]
    parser.add_argument("--formats", nargs="+", default=every, choices=every)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--results", type=str, default="out/eight_bit.csv")
    parser.add_argument("--output", type=str, default="out/eight_bit.png")
    arguments = parser.parse_args()
    for file in filter(None, (arguments.results, arguments.output)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if arguments.results and Path(arguments.results).exists():
        with open(arguments.results, newline="") as file:
            rows = list(csv.DictReader(file))
    words = text()
    for run in wanted(arguments.only, arguments.formats, arguments.seeds, arguments.steps):
        if any(tuple(row[c] for c in COLUMNS[:4]) == tuple(map(str, run)) for row in rows):
            continue
        loss = train(words, *run)
        rows.append(dict(zip(COLUMNS, (*map(str, run), f"{loss:.4f}"), strict=True)))
        print(" ".join(rows[-1].values()), flush=True)
        if arguments.results:
            with open(arguments.results, "w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    for name, formats in differences(rows).items():
        for form, values in formats.items():
            each = " ".join(f"{value:+.4f}" for value in values)
            print(f"{name:6} {form:32} {mean(values):+.4f}  ({each})")
    if arguments.output:
        plot(rows, Path(arguments.output))
        print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
