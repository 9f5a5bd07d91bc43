"""PEFT: LoRA adapters are trained, the frozen model is not touched, adapters are saved and loaded."""

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import batch, language_model, make

from cases import Case, each_case


def adapted() -> PeftModel:
    """The small model with adapters of rank 2."""
    model = language_model(dropout=0.0)
    config = LoraConfig(r=2, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True)
    torch.manual_seed(1)
    return get_peft_model(model, config)


def train(model: PeftModel, optimizer: torch.optim.Optimizer, steps: int = 8) -> list[float]:
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(**batch(step % 2)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@each_case
def test_adapters_train_and_the_frozen_model_stays(case: Case) -> None:
    """All parameters are given to the optimizer; those without gradient keep every bit and get no state."""
    model = adapted()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = make(case, model.parameters(), lr=0.05)
    losses = train(model, optimizer)
    assert losses[-1] < losses[0]
    trained = [name for name, param in model.named_parameters() if param.requires_grad]
    assert trained and all("lora" in name for name in trained)
    for name, param in model.named_parameters():
        assert torch.equal(param, before[name]) == (name not in trained), name
        assert (param in optimizer.state) == (name in trained), name


@each_case
def test_adapters_alone_train_the_same(case: Case) -> None:
    """Given the adapters only: the same numbers."""
    one, other = adapted(), adapted()
    all_of_it = make(case, one.parameters())
    adapters = make(case, [param for param in other.parameters() if param.requires_grad])
    assert train(one, all_of_it) == train(other, adapters)


@each_case
def test_saved_adapters_go_on(case: Case, tmp_path: Path) -> None:
    """The adapters from PEFT's file and the state from ours: training goes on with the same losses."""
    model = adapted()
    optimizer = make(case, [p for p in model.parameters() if p.requires_grad])
    train(model, optimizer, 4)
    model.save_pretrained(tmp_path)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    loaded = PeftModel.from_pretrained(language_model(dropout=0.0), tmp_path, is_trainable=True)
    again = make(case, [p for p in loaded.parameters() if p.requires_grad], lr=1.0)
    again.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert train(loaded, again, 4) == train(model, optimizer, 4)


def test_lora_with_adamw_is_torchs() -> None:
    """The same losses as with torch.optim.AdamW, to the roundings of float32."""
    from ingot.optim import NpuFusedAdamW

    results = []
    for kind, options in ((NpuFusedAdamW, {}), (torch.optim.AdamW, {"foreach": False})):
        model = adapted()
        results.append(train(model, kind(model.parameters(), lr=0.01, **options), 12))
    torch.testing.assert_close(*results, rtol=1e-5, atol=0)
