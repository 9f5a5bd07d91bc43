"""Accelerate: prepared optimizers, accumulation, clipping, saved states, and steps skipped after an overflow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from tiny import Counting, batch, language_model, make, same_bits
from torch.utils.data import DataLoader

from cases import Case, each_case
from training import assert_same, assert_unchanged, picture, tensors_of


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerate keeps its settings in singletons."""
    yield
    begin_anew()


def begin_anew() -> None:
    """As a new process would."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def prepared(case: Case, **options: Any) -> tuple[Accelerator, Any, Any, Any, Any]:
    accelerator = Accelerator(cpu=True, **options)
    model = language_model(dropout=0.0)
    optimizer = make(case, model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
    loader = DataLoader(Counting(), batch_size=4)
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def epoch(
    accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, scheduler: Any
) -> None:
    for data in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**data).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


@each_case
def test_an_epoch_is_that_of_a_plain_loop(case: Case) -> None:
    accelerator, model, optimizer, loader, scheduler = prepared(case, gradient_accumulation_steps=2)
    epoch(accelerator, model, optimizer, loader, scheduler)
    plain = language_model(dropout=0.0)
    other = make(case, plain.parameters())
    rate = torch.optim.lr_scheduler.LinearLR(other, 0.5, total_iters=4)
    for number, data in enumerate(DataLoader(Counting(), batch_size=4)):
        (plain(**data).loss / 2).backward()
        if number % 2:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            other.step()
            rate.step()
            other.zero_grad()
    same_bits(plain, accelerator.unwrap_model(model))


@each_case
def test_saved_and_loaded_states_go_on_the_same(case: Case, tmp_path: Path) -> None:
    first = prepared(case)
    epoch(*first)
    first[0].save_state(str(tmp_path))
    epoch(*first)
    begin_anew()
    second = prepared(case)
    second[0].load_state(str(tmp_path))
    epoch(*second)
    same_bits(first[1], second[1])
    assert_same(tensors_of(second[2].optimizer), tensors_of(first[2].optimizer))


def scaled_step(case: Case, overflow: bool, fused_scaling: bool = True) -> tuple[Any, Any, Any]:
    """A step through a scaler, as Accelerate makes it with fp16; its own needs a GPU."""
    Accelerator(cpu=True)
    model = language_model(dropout=0.0)
    optimizer = make(case, model.parameters())
    optimizer._step_supports_amp_scaling = fused_scaling
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wrapped = AcceleratedOptimizer(optimizer, scaler=scaler)
    scaler.scale(model(**batch()).loss).backward()
    if overflow:
        next(iter(model.parameters())).grad.view(-1)[0] = torch.inf
    before = picture(optimizer)
    wrapped.step()
    return wrapped, optimizer, before


@each_case
def test_a_step_through_a_scaler(case: Case) -> None:
    wrapped, optimizer, _ = scaled_step(case, overflow=False)
    assert not wrapped.step_was_skipped
    plain = language_model(dropout=0.0)
    other = make(case, plain.parameters())
    plain(**batch()).loss.backward()
    other.step()
    assert_same(tensors_of(optimizer), tensors_of(other))  # 8 is a power of two: no rounding
    assert wrapped.scaler.get_scale() == 8.0


@each_case
def test_an_overflow_changes_nothing(case: Case) -> None:
    wrapped, optimizer, before = scaled_step(case, overflow=True)
    assert_unchanged(optimizer, before)
    assert wrapped.scaler.get_scale() == 4.0


@each_case
def test_an_overflow_is_known_as_a_skipped_step(case: Case) -> None:
    """With the line that docs/precision.md gives. Without it a fused step counts as made, as torch's own does."""
    wrapped, _, _ = scaled_step(case, overflow=True)
    assert not wrapped.step_was_skipped
    begin_anew()
    wrapped, optimizer, before = scaled_step(case, overflow=True, fused_scaling=False)
    assert wrapped.step_was_skipped
    assert_same(tensors_of(optimizer), before["tensors"])  # the scaler has unscaled the gradients
    begin_anew()
    wrapped, optimizer, _ = scaled_step(case, overflow=False, fused_scaling=False)
    assert not wrapped.step_was_skipped
    begin_anew()
    _, other, _ = scaled_step(case, overflow=False)
    assert_same(tensors_of(optimizer), tensors_of(other))
