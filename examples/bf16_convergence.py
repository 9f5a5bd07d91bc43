"""Trains a small network on scikit-learn's digits in float32 and in bfloat16, and plots what each precision reaches.

    python examples/bf16_convergence.py                  # draws out/precision.png
    python examples/bf16_convergence.py --steps 500 --output /dev/null
    python examples/bf16_convergence.py --output docs/images/precision.png    # renews the picture of docs/precision.md

Only what is stored differs between the runs: parameters, gradients and states. The network itself computes in
float32 from the stored values, so the curves show what the optimizer's precision does and nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import functional_call
from torch.nn import Linear, Module, ReLU, Sequential
from torch.nn.functional import cross_entropy

from ingot.optim import NpuFusedAdamW, NpuFusedLamb
from ingot.optimizer import FusedOptimizer


class Setting(NamedTuple):
    """One way to store a model and its optimizer."""

    dtype: torch.dtype
    options: dict[str, Any]
    label: str
    style: dict[str, Any]  # of its curve


SETTINGS = {
    "float32": Setting(
        torch.float32,
        {},
        "float32 throughout: 12 B",
        {"color": "black", "linewidth": 5, "alpha": 0.25},
    ),
    "masters": Setting(
        torch.bfloat16,
        {"master_weights": True},
        "bfloat16 with master_weights: 14 B",
        {"color": "tab:blue", "linewidth": 2},
    ),
    "stochastic": Setting(
        torch.bfloat16,
        {"state_dtype": "param", "rounding": "stochastic"},
        "all bfloat16, stochastic: 6 B",
        {"color": "tab:green", "linestyle": (0, (5, 5)), "linewidth": 2},
    ),
    "float32 states": Setting(
        torch.bfloat16,
        {},
        "bfloat16, float32 states, nearest: 10 B",
        {"color": "tab:orange", "linewidth": 2},
    ),
    "nearest": Setting(
        torch.bfloat16,
        {"state_dtype": "param"},
        "all bfloat16, nearest: 6 B",
        {"color": "tab:red", "linestyle": (0, (5, 5)), "linewidth": 2},
    ),
}
# Rates as such a network is fine-tuned with: a step is smaller than half a unit in the last place of most weights.
OPTIMIZERS: dict[str, tuple[type[FusedOptimizer], float]] = {
    "AdamW": (NpuFusedAdamW, 3e-4),
    "Lamb": (NpuFusedLamb, 1e-3),
}


def digits() -> tuple[Tensor, Tensor]:
    """1797 images of 8 x 8 pixels between 0 and 1, and the digits they show."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def loss_of(model: Module, images: Tensor, labels: Tensor) -> Tensor:
    """The loss, computed in float32 from the weights as stored; gradients get the type of the weights."""
    weights = {name: param.float() for name, param in model.named_parameters()}
    return cross_entropy(functional_call(model, weights, (images,)), labels)


def train(name: str, setting: Setting, steps: int, every: int = 50) -> list[tuple[int, float]]:
    """Train one network; the loss over all images, as (step, loss) each ``every`` steps."""
    kind, lr = OPTIMIZERS[name]
    images, labels = digits()
    torch.manual_seed(0)
    model = Sequential(Linear(64, 32), ReLU(), Linear(32, 10)).to(setting.dtype)
    optimizer = kind(model.parameters(), lr=lr, **setting.options)
    batches = torch.Generator().manual_seed(1)
    curve = []
    for step in range(1, steps + 1):
        batch = torch.randint(len(images), (128,), generator=batches)
        optimizer.zero_grad()
        loss_of(model, images[batch], labels[batch]).backward()
        optimizer.step()
        if step % every == 0 or step == steps:
            with torch.no_grad():
                curve.append((step, float(loss_of(model, images, labels))))
    return curve


def plot(curves: dict[str, dict[str, list[tuple[int, float]]]], output: Path) -> None:
    """One panel per optimizer, one curve per setting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(10, 4.4), sharey=True)
    for panel, (name, runs) in zip(panels, curves.items(), strict=True):
        for setting, curve in runs.items():
            steps, losses = zip(*curve, strict=True)
            each = SETTINGS[setting]
            panel.plot(steps, losses, label=each.label, **each.style)
        panel.set_title(f"{name}, lr={OPTIMIZERS[name][1]:g}")
        panel.set_xlabel("step")
        panel.set_yscale("log")
        panel.set_yticks([2, 1, 0.5, 0.2, 0.1, 0.05], ["2", "1", "0.5", "0.2", "0.1", "0.05"])
        panel.minorticks_off()
        panel.grid(True, which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("training loss (digits)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncol=3,
        frameon=False,
        handlelength=3.5,
        title="weights and optimizer states, bytes per parameter",
    )
    figure.tight_layout(rect=(0, 0.19, 1, 1))
    figure.savefig(output, dpi=130, **({} if output.suffix else {"format": "png"}))


def main() -> None:
    """Train every setting with every optimizer, print where each ends, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--output", type=Path, default=Path("out/precision.png"))
    arguments = parser.parse_args()
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name in OPTIMIZERS:
        curves[name] = {}
        for key, setting in SETTINGS.items():
            curves[name][key] = train(name, setting, arguments.steps)
            step, loss = curves[name][key][-1]
            print(f"{name:6} {setting.label:45} loss after {step} steps: {loss:.4f}", flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    plot(curves, arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
