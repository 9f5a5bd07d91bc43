"""Trains a tiny randomly initialised model with transformers' Trainer; takes Trainer's own options.

Prints as JSON: losses, devices, optimizer, and whether a run that starts from the checkpoint in the
middle ends with the same bits.
"""

import dataclasses
import json
import logging
import os

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

WORDS, LENGTH = 64, 12


@dataclasses.dataclass
class Task:
    """What is trained."""

    model: str = dataclasses.field(default="bert", metadata={"help": "bert or llama"})
    attention: str = dataclasses.field(default="eager")
    resume_in_the_middle: bool = dataclasses.field(default=False)


def make_model(task: Task) -> PreTrainedModel:
    set_seed(0)
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "attn_implementation": task.attention,
    }
    if task.model == "bert":
        return BertForSequenceClassification(BertConfig(**sizes))
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes))


def make_data(task: Task) -> list[dict[str, torch.Tensor]]:
    """Numbers that count up from a random start, some cut short; the class is the start's half."""
    generator = torch.Generator().manual_seed(1)
    data = []
    for sample in range(96):
        start = int(torch.randint(1, WORDS - LENGTH, (1,), generator=generator))
        ids = torch.arange(start, start + LENGTH)
        mask = torch.ones(LENGTH, dtype=torch.long)
        mask[LENGTH - sample % 4 :] = 0
        ids = ids * mask
        labels = (
            torch.tensor(int(start > WORDS // 2))
            if task.model == "bert"
            else ids.masked_fill(mask == 0, -100)
        )
        data.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return data


def train(task: Task, options: TrainingArguments, resume: str | None = None) -> Trainer:
    trainer = Trainer(make_model(task), options, train_dataset=make_data(task))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def equal(ours: object, theirs: object) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return bool(ours.equal(theirs))
    return bool(ours == theirs)


def losses_of(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    logging.disable(logging.WARNING)
    task, options = HfArgumentParser((Task, TrainingArguments)).parse_args_into_dataclasses()
    whole = train(task, options)
    optimizer = whole.optimizer.optimizer
    result = {
        "losses": losses_of(whole),
        "devices": sorted({str(p.device) for p in whole.model.parameters()}),
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "memory": whole.state.log_history[-1].get("train_mem_gpu_alloc_delta"),
        "processes": options.world_size,
    }
    if task.resume_in_the_middle:
        middle = os.path.join(options.output_dir, f"checkpoint-{options.max_steps // 2}")
        again = train(task, options, resume=middle)
        result["same"] = {
            "losses": losses_of(again) == result["losses"],
            "model": equal(again.model.state_dict(), whole.model.state_dict()),
            "optimizer": equal(again.optimizer.state_dict(), whole.optimizer.state_dict()),
        }
    if options.process_index == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
