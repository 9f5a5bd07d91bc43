"""The same bits on every instruction set and for every number of threads, in forked processes and in two threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from native_buckets import copy_bucket, random_bucket, run_native

from ingot.optim import NpuFusedAdamP

HERE = Path(__file__).parent


def run_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own with environment variables added."""
    return subprocess.run(
        [sys.executable, *arguments],
        # More threads than cores must not spin while they wait for each other.
        env={**os.environ, "OMP_WAIT_POLICY": "passive", **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )


def test_instruction_sets_and_threads() -> None:
    """One digest for all. An instruction set the machine lacks is refused with its name, and left out."""
    digests, refused = {}, []
    for isa in ("baseline", "avx2", "avx512"):
        done = run_script(str(HERE / "native_digest.py"), INGOT_ISA=isa)
        if done.returncode:
            assert f"INGOT_ISA={isa}" in done.stderr, done.stderr
            refused.append(isa)
            continue
        name, *values = done.stdout.split()
        assert name == isa
        digests[isa] = set(values)
    assert "baseline" in digests
    assert len(set.union(*digests.values())) == 1, digests
    print("compared:", *digests, "refused:", *refused)


def test_unknown_instruction_set_is_refused() -> None:
    """A misspelt INGOT_ISA is no silent default."""
    done = run_script("-c", "import ingot.optim", INGOT_ISA="avx1024")
    assert done.returncode and "INGOT_ISA=avx1024 is not one of" in done.stderr
    done = run_script("-m", "ingot", "info", INGOT_ISA="avx1024")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("ingot: error: INGOT_ISA=avx1024 is not one of")


def test_two_threads_step_two_buckets() -> None:
    """Nothing is shared between calls: steps at the same time give what steps in turn give."""
    names = ["adamw", "adamp", "lamb", "sgd_momentum"]
    start = [random_bucket(name, [(300, 700), (515, 9), (64,)] * 3) for name in names]
    alone, together = [copy_bucket(b) for b in start], [copy_bucket(b) for b in start]
    for bucket in alone:
        for _ in range(10):
            run_native(bucket)

    def ten_steps(bucket: object) -> None:
        for _ in range(10):
            run_native(bucket)  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(ten_steps, together))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one.params, other.params, strict=True):
            assert torch.equal(a, b)


FORK = """
import os, torch
from ingot.optim import NpuFusedAdamW

def steps():
    torch.manual_seed(0)
    param = torch.randn(300, 700, requires_grad=True)
    optimizer = NpuFusedAdamW([param], backend="native")
    for _ in range(3):
        param.grad = torch.ones_like(param)
        optimizer.step()
    return float(param.detach().double().sum())

class Data(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return steps()

here = steps()
loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
print([float(x) == here for x in loader])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork")
def test_forked_data_loader_worker() -> None:
    """A worker forked after the parent used its threads can step, and gets the same numbers."""
    done = run_script("-c", FORK)
    assert done.stdout.strip() == "[True, True]", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_beside_the_tensors() -> None:
    """Below 1 MB, whatever the size of the model."""
    done = run_script(str(HERE / "native_memory.py"))
    assert done.returncode == 0, done.stderr
    rises = [int(line) for line in done.stdout.split()]
    assert len(rises) == 3 and max(rises) < 1024, rises


def test_versions_are_counted() -> None:
    """Autograd sees that a parameter saved for backward was changed by a step."""
    param = torch.randn(4, 4, requires_grad=True)
    optimizer = NpuFusedAdamP([param], backend="native")
    loss = (param * param).sum()
    param.grad = torch.ones_like(param)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
