"""Watch a network train while two things go wrong in it: one layer dies, another explodes.

    python examples/watch_training.py
    ingot watch watch.jsonl --output watch.png

A residual network learns a smooth function. After a third of the run, at step 400, the bias of ``blocks.2.0`` is
thrown far below zero, as a corrupt batch or a bad restart may do: its ReLU answers 0 to everything, and no gradient
comes back. In the last third, from step 800 on, the learning rate of ``blocks.4.2`` grows by 2% per step, as a schedule
with a wrong sign would let it. With fewer ``--steps`` all that happens sooner, and the rate grows as far.
The loss tells neither which layer it is nor what happens to it; the picture does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import ingot

STEPS = 1200
GROWTH = 1.02 ** (STEPS / 3)  # of the learning rate, in the last third of the run


class Residual(nn.Module):
    """Six blocks, each added to what it gets."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(6)
        )
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The answer, one number per input."""
        x = self.first(x)
        for block in self.blocks:
            x = x + 0.5 * block(x)
        answer: Tensor = self.last(x)
        return answer


def main() -> None:
    """Trains, and writes the metrics of every tenth step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", default="adamw", choices=ingot.list_optimizers())
    parser.add_argument("--output", type=Path, default=Path("watch.jsonl"), help="the metrics")
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args()
    third = chosen.steps // 3
    chosen.output.unlink(missing_ok=True)  # metrics are appended, and this is a new run

    torch.manual_seed(0)
    model = Residual()
    sick = list(model.blocks[4][2].parameters())
    healthy = [param for param in model.parameters() if all(param is not each for each in sick)]
    optimizer = ingot.create_optimizer(
        [{"params": healthy}, {"params": sick}], chosen.optimizer, lr=1e-3, max_grad_norm=1.0
    )
    optimizer.track_metrics(every=10, to=chosen.output, names=model)
    for step in range(chosen.steps):
        if step == third:
            with torch.no_grad():
                model.blocks[2][0].bias.sub_(50.0)
        if step >= 2 * third:
            optimizer.param_groups[1]["lr"] *= GROWTH ** (1 / third)
        x = torch.randn(64, 8)
        loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step:5}  loss {loss.item():.4f}")
    print(optimizer.metrics())
    print(f"\nNow: ingot watch {chosen.output}")


if __name__ == "__main__":
    main()
