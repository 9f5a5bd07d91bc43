"""The work of `ingot demo`: the data, the network, the runs, the table."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from ingot import backends, optim
from ingot.cli.demo_plot import draw

Build = Callable[..., torch.optim.Optimizer]

BATCH = 64
EPOCHS = 15


@dataclass
class Run:
    """One optimizer in the comparison and what was recorded of it."""

    name: str
    options: str
    build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    backend: str
    losses: list[float] = field(default_factory=list)  # one per step, of the batch before the step
    accuracies: list[float] = field(default_factory=list)  # one per epoch, on the test images
    seconds: list[float] = field(default_factory=list)  # one per step, optimizer.step() alone
    final_loss: float = float("nan")  # over all training images, after the last step


@dataclass
class Digits:
    """The 1797 digits of scikit-learn, 8 by 8 pixels: four fifths to train, the rest to test."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @classmethod
    def load(cls) -> Digits:
        """Reads the images that come with scikit-learn; nothing is downloaded."""
        bunch = load_digits()
        images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(bunch.target, dtype=torch.long)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        train, test = order.split([len(labels) * 4 // 5, len(labels) - len(labels) * 4 // 5])
        return cls(images[train], labels[train], images[test], labels[test])

    def batches(self, epochs: int) -> list[list[Tensor]]:
        """The indices of every batch of every epoch: the same for all optimizers."""
        generator = torch.Generator().manual_seed(1)
        count = len(self.train_labels)
        return [
            list(torch.randperm(count, generator=generator).split(BATCH)) for _ in range(epochs)
        ]


def contestants(steps: int, backend: str | None) -> list[tuple[Run, Run]]:
    """Every fused optimizer with what it must agree with, and with a learning rate that suits it.

    That is torch's class of the same math; where torch has none, the reference backend.
    """
    ours = backend or backends.choose_for(torch.device("cpu"))[0]

    def pair(fused: Build, torchs: Build | None = None, **values: Any) -> tuple[Run, Run]:
        options = ", ".join(f"{k}={v:g}" for k, v in values.items() if k != "t_total")
        name, chosen = fused.__name__, partial(fused, backend=backend, **values)
        reference = partial(fused, backend="reference", **values)
        other = Run(name, options, reference, "reference")
        if torchs is not None:
            other = Run(
                f"torch.optim.{torchs.__name__}", options, partial(torchs, **values), "torch"
            )
        return Run(name, options, chosen, ours), other

    return [
        pair(optim.NpuFusedAdamW, torch.optim.AdamW, lr=2e-3, weight_decay=1e-2),
        pair(optim.NpuFusedAdam, torch.optim.Adam, lr=2e-3),
        pair(optim.NpuFusedSGD, torch.optim.SGD, lr=0.05, momentum=0.9),
        pair(optim.NpuFusedAdadelta, torch.optim.Adadelta, lr=1.0),
        pair(optim.NpuFusedRMSprop, torch.optim.RMSprop, lr=1e-3),
        pair(optim.NpuFusedRMSpropTF, lr=5e-4, momentum=0.9),
        pair(optim.NpuFusedLamb, lr=3e-3),
        pair(optim.NpuFusedAdamP, lr=4e-3, weight_decay=1e-2),
        pair(optim.NpuFusedBertAdam, lr=2e-3, warmup=0.1, t_total=steps),
    ]


def network() -> nn.Module:
    """Two normalised convolutions and a classifier; small enough for a laptop's processor."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(
    run: Run, model: nn.Module, digits: Digits, epochs: int, tick: Callable[[], None]
) -> None:
    """Trains ``model`` and records into ``run``; calls ``tick`` after every step."""
    optimizer = run.build(list(model.parameters()))
    for batches in digits.batches(epochs):
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(
                model(digits.train_images[batch]), digits.train_labels[batch]
            )
            loss.backward()
            start = time.perf_counter()
            optimizer.step()
            run.seconds.append(time.perf_counter() - start)
            run.losses.append(loss.item())
            tick()
        run.accuracies.append(evaluate(model, digits.test_images, digits.test_labels)[1])
    run.final_loss = evaluate(model, digits.train_images, digits.train_labels)[0]


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean loss and the share of images recognised."""
    model.eval()
    scores = model(images)
    loss = functional.cross_entropy(scores, labels).item()
    return loss, (scores.argmax(1) == labels).float().mean().item()


def train_all(runs: list[Run], digits: Digits, epochs: int, console: Console) -> None:
    """Trains every run from the same start; live bars on a terminal, plain lines elsewhere."""
    start = network()
    steps = sum(len(batches) for batches in digits.batches(epochs))
    columns = (
        TextColumn("{task.description:<19}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = [progress.add_task(run.name, total=steps, loss="-", start=False) for run in runs]
        for run, task in zip(runs, tasks, strict=True):
            progress.start_task(task)

            def tick(run: Run = run, task: TaskID = task) -> None:
                progress.update(task, advance=1, loss=f"{run.losses[-1]:.4f}")

            train(run, copy.deepcopy(start), digits, epochs, tick)
            if not console.is_terminal:
                console.print(f"{run.name}: {steps} steps, final loss {run.final_loss:.4f}")


def summary(runs: list[Run]) -> Table:
    """The final table."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("optimizer", no_wrap=True)
    table.add_column("backend", no_wrap=True)
    for heading in ("final loss", "test accuracy", "us per step"):
        table.add_column(heading, justify="right")
    for run in runs:
        table.add_row(
            run.name,
            run.backend,
            f"{run.final_loss:.4f}",
            f"{run.accuracies[-1]:.1%}",
            f"{statistics.median(run.seconds) * 1e6:.0f}",
        )
    return table


def run(output: Path, quick: bool, backend: str | None) -> None:
    """Trains all, prints the table and writes the picture to ``output``."""
    epochs = 2 if quick else EPOCHS
    torch.set_num_threads(1)  # a second thread only waits: the network is that small
    digits, console = Digits.load(), Console()
    pairs = contestants(sum(len(batches) for batches in digits.batches(epochs)), backend)
    runs = [run for pair in pairs for run in pair]
    train_all(runs, digits, epochs, console)
    console.print(summary(runs))
    console.print("final loss: mean over all training images, after the last step")
    console.print("us per step: median of optimizer.step() alone, one thread")
    console.print("Two rows with the same math follow each other; between others the learning")
    console.print("rates differ, so that the table does not rank the optimizers.")
    console.print("This network has convolutions and 8 tensors, and trains between its steps: a")
    console.print("step takes longer than that of the MLP of 6 tensors on the front page, which is")
    console.print("timed alone (some 22 against 4.7 us for AdamW, on a quiet machine).")
    output.parent.mkdir(parents=True, exist_ok=True)
    draw(pairs, output)
    console.print(f"curves: {output}", soft_wrap=True)
