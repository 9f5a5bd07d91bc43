"""torch_npu.contrib.transfer_to_npu: a script for CUDA means the simulated NPU. Each in its own process."""

import pytest
from npusim_paths import Run

BEGIN = """
import torch, torch_npu, warnings
from torch_npu.contrib import transfer_to_npu
def on_npu(*tensors):
    assert {t.device for t in tensors} == {torch.device("npu", 0)}, [t.device for t in tensors]
"""
SCRIPTS = {
    "factories": """
on_npu(torch.ones(2, device="cuda"), torch.tensor([1.0], device="cuda:0"),
       torch.zeros(2, device=torch.device("cuda")), torch.randn(2, device=torch.device("cuda", 0)),
       torch.arange(3, device="cuda"), torch.full((2,), 1.0, device="cuda"),
       torch.as_tensor([1.0], device="cuda"), torch.empty_like(torch.ones(2), device="cuda"),
       torch.rand_like(torch.ones(2), device="cuda"), torch.randperm(3, device="cuda"))
assert torch.ones(2).device.type == "cpu" and torch.ones(2, device="cpu").device.type == "cpu"
with torch.device("cuda"):
    on_npu(torch.ones(2), torch.nn.Linear(2, 2).weight)
torch.set_default_device("cuda")
on_npu(torch.ones(2))
""",
    "tensors": """
x = torch.ones(2)
on_npu(x.cuda(), x.cuda(0), x.to("cuda"), x.to(torch.device("cuda:0")), x.to(device="cuda"),
       x.to("cuda", torch.float16), x.cuda().new_ones(2), x.new_zeros(2, device="cuda"),
       x.new_tensor([1.0], device="cuda"), x.cuda(non_blocking=True), x.to(x.cuda()))
assert x.cuda().is_cuda and not x.is_cuda and x.to(torch.float64).dtype == torch.float64
net = torch.nn.Linear(2, 2)
on_npu(*net.cuda().parameters(), *torch.nn.Linear(2, 2).to("cuda").parameters(),
       *torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").parameters())
on_npu(torch.cuda.FloatTensor([1.0]), torch.cuda.LongTensor(2))
assert torch.cuda.DoubleTensor([1.0]).dtype == torch.float32
assert isinstance(x.cuda(), torch.cuda.FloatTensor)
""",
    "torch.cuda": """
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
torch.cuda.set_device(0)
torch.cuda.set_device("cuda:0")
assert torch.cuda.current_device() == 0 and "simulated" in torch.cuda.get_device_name("cuda:0")
assert torch.cuda.get_device_properties("cuda").total_memory > 0
held = torch.ones(100, device="cuda")
assert torch.cuda.memory_allocated("cuda:0") >= 400 == torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats(torch.device("cuda", 0))
torch.cuda.empty_cache()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device("cuda:0"), torch.cuda.device(0):
    held.add_(1)
torch.cuda.current_stream().synchronize()
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0
torch.cuda.manual_seed_all(4)
state = torch.cuda.get_rng_state("cuda:0")
first = torch.randn(3, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.randn(3, device="cuda").equal(first)
assert torch.cuda.is_bf16_supported()
""",
    "mixed precision": """
x = torch.ones(2, 2, device="cuda")
from torch.cuda.amp import GradScaler, autocast
assert autocast is torch.npu.amp.autocast and GradScaler is torch.npu.amp.GradScaler
for context in (autocast(), torch.autocast("cuda"), torch.amp.autocast("cuda", dtype=torch.float16),
                torch.autocast(device_type="cuda", dtype=torch.float16)):
    with context:
        assert (x @ x).dtype == torch.float16
with torch.autocast("cpu"):
    assert (x @ x).dtype == torch.float32
for scaler in (GradScaler(), torch.amp.GradScaler("cuda"), torch.amp.GradScaler(device="cuda")):
    on_npu(scaler.scale(x))
""",
    "loading": """
import io
def saved():
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    file.seek(0)
    return file
on_npu(*(torch.load(saved(), map_location=where)["x"] for where in
         ("cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"})),
       torch.load(saved(), "cuda:0")["x"])
assert torch.load(saved(), map_location="cpu")["x"].device.type == "cpu"
""",
    "jit is switched off": """
@torch.jit.script
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
assert not isinstance(double, torch.jit.ScriptFunction) and double(torch.ones(1)).item() == 2
""",
    "distributed": """
import os
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
assert dist.is_nccl_available()
for backend, expected in (("nccl", "hccl"), ("cpu:gloo,cuda:nccl", "cpu:gloo,npu:hccl")):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    assert dist.get_backend() == expected.split(":")[-1] or expected in str(dist.get_backend()), dist.get_backend()
    x = torch.ones(2, device="cuda")
    dist.all_reduce(x)
    if "gloo" in backend:
        y = torch.ones(2)
        dist.all_reduce(y)
    group = dist.new_group([0], backend="nccl")
    dist.all_reduce(x, group=group)
    assert x.tolist() == [1, 1]
    mesh = dist.init_device_mesh("cuda", (1,))
    assert mesh.device_type == "npu"
    dist.destroy_process_group()
""",
    "what it leaves alone": """
assert torch.device("cuda").type == "cuda"
assert torch.cuda.get_device_capability() is None
import torch_npu.contrib.transfer_to_npu  # a second time: nothing more happens
assert not hasattr(torch.ones.__wrapped__, "__wrapped__")
""",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_cuda_means_npu(run: Run, script: str) -> None:
    run("-c", f"{BEGIN}{SCRIPTS[script]}", npusim="1")


def test_it_warns_and_only_when_imported(run: Run) -> None:
    code = """
import warnings
import torch, torch_npu, torch_npu.contrib
assert not torch.cuda.is_available() and dir(torch_npu.contrib)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch_npu.contrib.transfer_to_npu
assert torch.cuda.is_available()
(warning,) = [w for w in caught if w.category is ImportWarning]
assert "simulated by ingot.npusim" in str(warning.message)
"""
    run("-c", code, npusim="1")
