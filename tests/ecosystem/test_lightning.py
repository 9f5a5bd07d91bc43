"""Lightning: closures, clipping, accumulation and resumed runs."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from tiny import Counting, language_model, make, same_bits
from torch import Tensor
from torch.utils.data import DataLoader

from cases import CASES, Case, each_case
from training import assert_same, tensors_of

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES = 6  # of an epoch


class Module(lightning.LightningModule):
    """The small language model with an optimizer and a schedule."""

    def __init__(self, case: Case, **options: Any) -> None:
        super().__init__()
        self.case, self.options = case, options
        self.model = language_model(dropout=0.0)

    def training_step(self, data: dict[str, Tensor], number: int) -> Tensor:
        return self.model(**data).loss

    def configure_optimizers(self) -> Any:
        optimizer = make(self.case, self.parameters(), **self.options)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(module: Module, resume: Path | None = None, **options: Any) -> Any:
    """Train without files, bars and summaries; the trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"gradient_clip_val": 0.1, **options},
    )
    data = DataLoader(Counting(), batch_size=4)
    trainer.fit(module, data, ckpt_path=resume, weights_only=False)
    return trainer


@each_case
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_a_run_is_that_of_a_plain_loop(case: Case, algorithm: str) -> None:
    """Clipped by norm or value, two batches per step; a closure is handed to every step."""
    module = Module(case)
    trainer = fit(module, max_steps=3, gradient_clip_algorithm=algorithm, accumulate_grad_batches=2)
    plain = language_model(dropout=0.0)
    optimizer = make(case, plain.parameters())
    rate = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    clip = {"norm": torch.nn.utils.clip_grad_norm_, "value": torch.nn.utils.clip_grad_value_}
    for number, data in enumerate(DataLoader(Counting(), batch_size=4)):
        (plain(**data).loss / 2).backward()
        if number % 2:
            clip[algorithm](plain.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            rate.step()
    same_bits(plain, module.model)
    assert_same(tensors_of(trainer.optimizers[0]), tensors_of(optimizer))


@each_case
def test_resumed_runs_end_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    """One epoch, saved, another one; and both without interruption."""
    whole, half, resumed = Module(case), Module(case), Module(case, lr=1.0)
    first = fit(whole, max_epochs=2)
    fit(half, max_epochs=1).save_checkpoint(tmp_path / "half.ckpt")
    second = fit(resumed, tmp_path / "half.ckpt", max_epochs=2)
    assert second.global_step == first.global_step == 2 * BATCHES
    same_bits(whole.model, resumed.model)
    assert_same(tensors_of(second.optimizers[0]), tensors_of(first.optimizers[0]))


@each_case
def test_the_clipping_inside_the_step_is_lightnings(case: Case) -> None:
    """``max_grad_norm`` of the optimizer instead of ``gradient_clip_val``: to the rounding of the coefficient."""
    unclipped = {"max_grad_norm": -1} if case.name == "bert_adam" else {}
    scope = {"clip_scope": "global"} if case.name == "bert_adam" else {}
    # The bias of the keys has no gradient but rounding errors; with a small eps they would move it as far as others.
    eps = {"eps": 1e-4} if "eps" in case.signature else {}
    inside = Module(case, max_grad_norm=0.1, **scope, **eps)
    outside = Module(case, **unclipped, **eps)
    fit(inside, max_steps=4, gradient_clip_val=None)
    fit(outside, max_steps=4)
    for one, other in zip(inside.parameters(), outside.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Released(Module):
    """Keeps its losses; with ``release`` its optimizer makes the step inside backward."""

    def __init__(self, case: Case, release: bool) -> None:
        super().__init__(case)
        self.release, self.losses = release, []

    def training_step(self, data: dict[str, Tensor], number: int) -> Tensor:
        loss = super().training_step(data, number)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizers, schedules = super().configure_optimizers()
        if self.release:
            optimizers[0].release_gradients()
        return optimizers, schedules

    def on_after_backward(self) -> None:
        assert {param.grad is None for param in self.parameters()} == {self.release}


def test_released_gradients_give_the_same_losses() -> None:
    """The step inside backward, in the closure that Lightning hands to every step."""
    normal, released = (Released(CASES["adamw"], release) for release in (False, True))
    for module in (normal, released):
        fit(module, max_epochs=1, gradient_clip_val=None)
    assert released.losses == normal.losses and len(normal.losses) == BATCHES
    same_bits(normal.model, released.model)
