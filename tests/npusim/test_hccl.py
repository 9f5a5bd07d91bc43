"""Two processes on simulated NPUs through the backend hccl: collectives, DDP, FSDP2, a migrated script."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from npusim_paths import HERE, Run
from torch import nn

PROGRAMS = HERE / "programs"


@pytest.fixture
def torchrun(run: Run) -> Run:
    def torchrun(program: str, *args: str) -> Any:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        env = {"OMP_NUM_THREADS": "1"}
        return run(*launcher, str(PROGRAMS / program), *args, npusim="1", env=env)

    return torchrun


def last_line(output: str) -> Any:
    return json.loads(output.strip().splitlines()[-1])


def test_collectives(torchrun: Run) -> None:
    assert torchrun("hccl_collectives.py").stdout.endswith("all collectives agree\n")


def test_a_process_may_end_before_its_collectives(torchrun: Run) -> None:
    """Gloo's threads asked for Python's lock during its shutdown: the process was aborted."""
    assert "terminate called" not in torchrun("hccl_leaving.py").stderr


def program(name: str) -> ModuleType:
    """The program as a module: its data and network, for a run on the CPU."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fsdp2_gives_the_numbers_of_one_process(torchrun: Run) -> None:
    result = last_line(torchrun("hccl_fsdp2.py").stdout)
    ours = program("hccl_fsdp2")
    net = ours.make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    expected = []
    for step in range(4):
        optimizer.zero_grad()
        losses = [net(ours.batch(step, rank)).square().mean() for rank in (0, 1)]
        (sum(losses) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        expected.append(sum(loss.item() for loss in losses) / 2)
    assert result["float32"]["losses"] == pytest.approx(expected, rel=1e-5)
    for name, param in net.named_parameters():
        found = torch.tensor(result["float32"]["params"][name])
        torch.testing.assert_close(found, param.detach(), rtol=1e-5, atol=1e-6)
    # Eight bits of a bfloat16's mantissa.
    assert result["bfloat16"]["losses"] == pytest.approx(expected, rel=1e-2)
    assert result["bfloat16"]["losses"] != result["float32"]["losses"]


def migrated_on_the_cpu() -> list[float]:
    """The training of migrated_cuda.py in one process, written again for torch on the CPU."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(64, 8, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    found = []
    for epoch in range(2):
        loaders = []
        for rank in (0, 1):
            sampler = torch.utils.data.DistributedSampler(data, 2, rank, shuffle=True, seed=5)
            sampler.set_epoch(epoch)
            loaders.append(torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler))
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            losses = [nn.functional.cross_entropy(net(x), y) for x, y in batches]
            (sum(losses) / 2).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            found.append(sum(loss.item() for loss in losses) / 2)
    return found


def test_a_migrated_cuda_script(torchrun: Run, tmp_path: Path) -> None:
    exact = last_line(torchrun("migrated_cuda.py", "--precision", "float32").stdout)
    expected = migrated_on_the_cpu()
    assert exact["losses"] == pytest.approx(expected, rel=1e-5)
    file = str(tmp_path / "checkpoint.pt")
    mixed = last_line(torchrun("migrated_cuda.py", "--checkpoint", file).stdout)
    assert mixed["losses"] == pytest.approx(expected, rel=2e-3) != pytest.approx(expected, rel=1e-6)
    assert mixed["backend"] == "hccl" and mixed["devices"] == ["npu:0"]
    assert mixed["agree"] and mixed["is_cuda"] and mixed["peak"] and mixed["milliseconds"]
    assert "simulated" in mixed["name"]
    resumed = last_line(torchrun("migrated_cuda.py", "--checkpoint", file, "--resume").stdout)
    assert resumed["losses"] == mixed["losses"][-len(resumed["losses"]) :]  # bit by bit
    assert len(resumed["losses"]) == len(mixed["losses"]) // 2


def test_states_in_host_memory_see_averaged_gradients(torchrun: Run) -> None:
    """Gradients are copied when backward has accumulated them, and averaged after that."""
    result = last_line(torchrun("hccl_offload.py").stdout)
    ours = program("hccl_offload")
    net = ours.make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        losses = [net(ours.batch(step, rank)).square().mean() for rank in (0, 1)]
        (sum(losses) / 2).backward()
        optimizer.step()
    assert len(result) == 3
    for params in result.values():
        for found, param in zip(params, net.parameters(), strict=True):
            expected = param.detach().flatten()
            torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-6)
