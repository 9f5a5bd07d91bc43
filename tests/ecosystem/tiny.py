"""A small language model with random weights, and something for it to learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from cases import Case

VOCABULARY, LENGTH, SAMPLES = 32, 12, 24


def language_model(dropout: float = 0.1) -> GPT2LMHeadModel:
    """One layer of GPT-2; always the same weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


class Counting(Dataset):  # type: ignore[type-arg]
    """Sequences of successive numbers, which are easy to predict."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(LENGTH) + 5 * index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens.clone()}


def batch(first: int = 0, size: int = 4) -> dict[str, Tensor]:
    """Some samples together."""
    samples = [Counting()[(first + number) % SAMPLES] for number in range(size)]
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def make(case: Case, params: Any, **options: Any) -> torch.optim.Optimizer:
    """An optimizer with a state and a rate that shows within a few steps."""
    momentum = {"momentum": 0.9} if "momentum" in case.signature else {}
    return case.make(params, **{"lr": 0.01, **momentum, **options})


def same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    """Equal parameters, bit for bit."""
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
