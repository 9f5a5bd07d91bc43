"""Who is imported first, torch, torch_npu or ingot, does not matter to the simulated NPU."""

from pathlib import Path

import pytest
from npusim_paths import ROOT, SIMULATED, Run


@pytest.mark.parametrize("first", ["import ingot.optim", "from ingot import NpuFusedAdamW"])
def test_ingot_may_be_imported_before_torch(run: Run, first: str) -> None:
    """While it is being imported, torch comes back to ingot, itself half imported."""
    code = f"{first}\nimport torch, torch_npu, ingot\nprint(torch.ones(2).npu().device)"
    code += "\nassert torch_npu.optim.NpuFusedAdamW is ingot.NpuFusedAdamW"
    assert run("-c", code, npusim="1").stdout == "npu:0\n"


def startup(site: Path) -> str:
    """Code that does what Python does when it starts with ingot installed: reads ingot_npusim.pth.

    Twice, because an editable install may do so too, or this environment has it installed.
    """
    (site / "ingot_npusim.pth").write_text((ROOT / "src" / "ingot_npusim.pth").read_text())
    return f"""
import site, sys
for _ in range(2):
    site.addsitedir({str(site)!r})
def early():
    return [type(f).__name__ for f in sys.meta_path if type(f).__name__ == "_EarlyFinder"]
"""


@pytest.mark.parametrize("first", ["import torch_npu", "from torch_npu.optim import NpuFusedAdamW"])
def test_torch_npu_may_be_imported_before_torch(run: Run, tmp_path: Path, first: str) -> None:
    code = f"{startup(tmp_path)}\nassert len(early()) == 1 and 'torch' not in sys.modules\n{first}"
    code += "\nimport torch, torch_npu\nprint(torch.ones(2).npu().device)"
    done = run("-c", code, npusim="1")
    assert (done.stdout, done.stderr.count(SIMULATED)) == ("npu:0\n", 1)


def test_torch_first_is_as_before(run: Run, tmp_path: Path) -> None:
    code = f"{startup(tmp_path)}\nimport torch, torch_npu\nprint(torch.ones(2).npu().device)"
    assert run("-c", code, npusim="1").stdout == "npu:0\n"


@pytest.mark.parametrize("npusim", [None, "", "0"])
def test_starting_python_changes_nothing_when_nobody_asks(
    run: Run, tmp_path: Path, npusim: str | None
) -> None:
    code = f"{startup(tmp_path)}\nprint(early(), [m for m in sys.modules if m.startswith('ingot')])"
    assert run("-c", code, npusim=npusim).stdout == "[] []\n"


def test_a_real_torch_npu_wins_before_torch_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("real = True\n")
    code = f"{startup(tmp_path)}\nimport torch_npu\nprint(torch_npu.real, 'torch' in sys.modules)"
    assert run("-c", code, npusim="1", before=(str(tmp_path),)).stdout == "True False\n"
