"""transformers' Trainer: a run that is resumed from a checkpoint ends with the same bits as one that was not."""

from pathlib import Path
from typing import Any

import torch
from tiny import Counting, language_model, make, same_bits
from transformers import Trainer, TrainerCallback, TrainingArguments

from cases import Case, each_case
from ingot.optim import NpuFusedAdamW
from training import assert_same, tensors_of

STEPS, HALF = 6, 3


def arguments(folder: Path, **others: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "save_steps": HALF,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "warmup_steps": 2,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
    }
    return TrainingArguments(**{**settings, **others})


def trainer(case: Case, folder: Path, **others: Any) -> tuple[Trainer, Any]:
    model = language_model()
    optimizer = make(case, model.parameters())
    built = Trainer(
        model=model,
        args=arguments(folder, **others),
        train_dataset=Counting(),
        optimizers=(optimizer, None),  # the scheduler is Trainer's own
    )
    return built, optimizer


@each_case
def test_resumed_runs_end_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    whole, optimizer = trainer(case, tmp_path)
    whole.train()
    resumed, other = trainer(case, tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{HALF}"))
    assert resumed.state.global_step == STEPS
    same_bits(whole.model, resumed.model)
    assert_same(tensors_of(other), tensors_of(optimizer))
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    again = [entry["loss"] for entry in resumed.state.log_history if "loss" in entry]
    assert again[-HALF:] == losses[-HALF:]


@each_case
def test_trainer_builds_the_optimizer(case: Case, tmp_path: Path) -> None:
    """By class and options, with its own groups: no decay of biases and normalisation."""
    options = {"lr": 0.01, **({"momentum": 0.9} if "momentum" in case.signature else {})}
    built = Trainer(
        model=language_model(),
        args=arguments(tmp_path, save_strategy="no", weight_decay=0.1),
        train_dataset=Counting(),
        optimizer_cls_and_kwargs=(case.kind, options),
    )
    built.train()
    optimizer = built.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper
    assert isinstance(optimizer, case.kind)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_adamw_trains_as_torchs_does(tmp_path: Path) -> None:
    """Trainer's own choice, torch.optim.AdamW, and ours: the same losses to the roundings of float32."""
    losses = []
    for ours in (False, True):
        model = language_model(dropout=0.0)
        optimizer = NpuFusedAdamW(model.parameters(), lr=0.01, weight_decay=0.0) if ours else None
        built = Trainer(
            model=model,
            args=arguments(tmp_path, save_strategy="no", learning_rate=0.01, optim="adamw_torch"),
            train_dataset=Counting(),
            optimizers=(optimizer, None),
        )
        built.train()
        losses.append([entry["loss"] for entry in built.state.log_history if "loss" in entry])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)


class WithoutGradients(TrainerCallback):
    """Asserts before every step that no gradient is left."""

    def __init__(self) -> None:
        self.steps = 0

    def on_pre_optimizer_step(self, *arguments: Any, model: Any, **others: Any) -> None:
        assert all(param.grad is None for param in model.parameters())
        self.steps += 1


def test_released_gradients_give_the_same_losses(tmp_path: Path) -> None:
    """The step inside backward, under Trainer's loop and schedule; it must neither accumulate nor clip."""
    losses, models = [], []
    for release in (False, True):
        model = language_model()
        optimizer = NpuFusedAdamW(model.parameters(), lr=0.01)
        watch = WithoutGradients()
        built = Trainer(
            model=model,
            args=arguments(
                tmp_path, save_strategy="no", gradient_accumulation_steps=1, max_grad_norm=0
            ),
            train_dataset=Counting(),
            optimizers=(optimizer, None),
            callbacks=[watch] if release else [],
        )
        if release:
            optimizer.release_gradients()
        built.train()
        assert watch.steps == (STEPS if release else 0)
        losses.append([entry["loss"] for entry in built.state.log_history if "loss" in entry])
        models.append(model)
    assert losses[1] == losses[0] and len(losses[0]) == STEPS
    same_bits(*models)
