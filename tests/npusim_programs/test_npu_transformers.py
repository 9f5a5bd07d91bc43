"""transformers' Trainer on the simulated NPU: tiny BERT and Llama, every precision, resumed bit by bit."""

from pathlib import Path
from typing import Any

import pytest

STEPS = 16
COMMON = {
    "max_steps": STEPS,
    "save_steps": STEPS // 2,
    "logging_steps": 1,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 3,
    "skip_memory_metrics": False,
}
PRECISIONS = {"float32": [], "bfloat16": ["--bf16"], "float16": ["--fp16"]}
# Against float32 on the CPU, over all steps: roundings, then the bits of the types.
CLOSE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 5e-3}


def arguments(folder: Path, model: str, *more: str, **changed: Any) -> list[str]:
    options = {"model": model, "output_dir": folder, **COMMON, **changed}
    return [text for name, value in options.items() for text in (f"--{name}", str(value))] + list(
        more
    )


@pytest.fixture(scope="module")
def on_the_cpu(launch: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of the same training on the CPU with torch's own AdamW."""
    losses = {}
    for model in ("bert", "llama"):
        folder = tmp_path_factory.mktemp(model)
        options = arguments(
            folder, model, "--use_cpu", "--optim", "adamw_torch", save_strategy="no"
        )
        found = launch("train_transformers.py", *options, npusim=False)
        assert found["devices"] == ["cpu"] and found["optimizer"] == "torch.optim.adamw.AdamW"
        losses[model] = found["losses"]
    return losses


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model", ["bert", "llama"])
def test_trainer(
    launch: Any, tmp_path: Path, on_the_cpu: dict[str, list[float]], model: str, precision: str
) -> None:
    options = arguments(tmp_path, model, "--optim", "adamw_torch_npu_fused", *PRECISIONS[precision])
    found = launch("train_transformers.py", *options, "--resume_in_the_middle")
    assert found["devices"] == ["npu:0"]
    assert found["optimizer"] == "ingot.optim.adamw.NpuFusedAdamW"
    expected = on_the_cpu[model]
    assert len(expected) == STEPS and sum(expected[-4:]) < 0.9 * sum(expected[:4])  # it does learn
    assert found["losses"] == pytest.approx(expected, rel=CLOSE[precision])
    assert found["same"] == {"losses": True, "model": True, "optimizer": True}
    assert found["memory"] > 0


def test_flash_attention(launch: Any, tmp_path: Path, on_the_cpu: dict[str, list[float]]) -> None:
    """Transformers calls npu_fusion_attention: sequences of several lengths in a row, causal."""
    options = arguments(
        tmp_path, "llama", "--bf16", "--optim", "adamw_torch_npu_fused",
        attention="flash_attention_2", save_strategy="no",
    )  # fmt: skip
    found = launch("train_transformers.py", *options)
    assert found["losses"] == pytest.approx(on_the_cpu["llama"], rel=CLOSE["bfloat16"])


def test_two_processes(launch: Any, tmp_path: Path, on_the_cpu: dict[str, list[float]]) -> None:
    options = arguments(
        tmp_path, "llama", "--optim", "adamw_torch_npu_fused",
        per_device_train_batch_size=4, save_strategy="no",
    )  # fmt: skip
    found = launch("train_transformers.py", *options, processes=2)
    assert found["processes"] == 2 and found["devices"] == ["npu:0"]
    assert found["losses"] == pytest.approx(on_the_cpu["llama"], rel=1e-4)
