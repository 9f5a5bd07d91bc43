"""The three ways to ask for the simulated NPU, and that nothing changes when nobody asks."""

import json
from pathlib import Path
from typing import Any

import pytest
from npusim_paths import SIMULATED, Run

# What of torch and of the import system a simulated NPU changes.
STATE = """
import json, sys
def state():
    import torch
    keys = ["PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1", "CPU", "AutogradCPU"]
    classes = [torch.Tensor, torch.nn.Module, torch.UntypedStorage, torch.storage.TypedStorage,
               torch.nn.utils.rnn.PackedSequence, torch.Generator]
    return {
        "backend": torch._C._get_privateuse1_backend_name(),
        "module": hasattr(torch, "npu"),
        "accelerator": str(torch.accelerator.current_accelerator()),
        "kernels": {k: sorted(torch._C._dispatch_get_registrations_for_dispatch_key(k)) for k in keys},
        "methods": {c.__name__: {k: repr(v) for k, v in sorted(vars(c).items()) if callable(v)
                                 or isinstance(v, property)} for c in classes},
        "finders": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "imported": sorted(m for m in sys.modules if m.startswith(("torch_npu", "torch.npu"))),
    }
"""
USE_INGOT = """
import os
import ingot, ingot.npusim, ingot.npusim.autoload
assert "torch" not in sys.modules, "importing ingot alone must stay cheap"
import torch, ingot.optim
for wish in ("", "0"):
    os.environ["INGOT_NPUSIM"] = wish
    ingot.npusim.autoload.autoload()
assert not ingot.npusim.is_installed()
"""


def without_addresses(state: dict[str, Any]) -> dict[str, Any]:
    """Functions are compared by name: their addresses differ between processes."""
    methods = state.pop("methods")
    short = {
        name: {k: v.split(" at 0x")[0] for k, v in table.items()} for name, table in methods.items()
    }
    return {**state, "methods": short}


@pytest.fixture(scope="module")
def untouched(run: Run) -> dict[str, Any]:
    """The state of a torch that knows nothing of ingot."""
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = run("-c", STATE + "print(json.dumps(state()))", env=env)
    return without_addresses(json.loads(done.stdout))


def test_nothing_changes_when_nobody_asks(run: Run, untouched: dict[str, Any]) -> None:
    done = run("-c", STATE + USE_INGOT + "print(json.dumps(state()))")
    assert untouched["backend"] == "privateuseone" and len(untouched["kernels"]["CPU"]) > 1000
    assert without_addresses(json.loads(done.stdout)) == untouched
    assert SIMULATED not in done.stderr


def test_the_comparison_would_notice(run: Run, untouched: dict[str, Any]) -> None:
    code = "import ingot.npusim; ingot.npusim.install(); import torch_npu"
    done = run("-c", f"{STATE}\n{code}\nprint(json.dumps(state()))")
    state = without_addresses(json.loads(done.stdout))
    assert {name for name in state if state[name] != untouched[name]} == set(untouched)
    assert state["finders"] == [*untouched["finders"], "_Finder"]  # the last to be asked
    assert state["kernels"]["CPU"] == untouched["kernels"]["CPU"]


SCRIPT = """
import sys
import torch
from torch_npu.npu.amp import autocast
import torch_npu
from helper import two
x = torch.ones(2).npu()
loss = (x * two).requires_grad_().square().sum()
loss.backward()
print(__name__, sys.argv[1:], sys.path[0] == sys.argv[0].rpartition("/")[0], x.device, loss.item())
print(torch.npu.is_available(), torch_npu.npu is torch.npu)
"""
EXPECTED = "__main__ ['a', '-b'] True npu:0 8.0\nTrue True\n"


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("two = 2\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    return str(tmp_path / "script.py")


def test_runner(run: Run, script: str) -> None:
    done = run("-m", "ingot.npusim", script, "a", "-b")
    assert done.stdout == EXPECTED
    assert done.stderr.count(SIMULATED) == 1


def test_environment_variable(run: Run, script: str) -> None:
    done = run(script, "a", "-b", npusim="1")
    assert done.stdout == EXPECTED
    assert done.stderr.count(SIMULATED) == 1


def test_both_at_once(run: Run, script: str) -> None:
    done = run("-m", "ingot.npusim", script, "a", "-b", npusim="1")
    assert (done.stdout, done.stderr.count(SIMULATED)) == (EXPECTED, 1)


def test_in_code(run: Run) -> None:
    code = """
import ingot.npusim
assert not ingot.npusim.is_installed()
assert ingot.npusim.install() is True and ingot.npusim.install() is True
assert ingot.npusim.is_installed()
import torch
print(torch.ones(2).npu().sum().item())
"""
    for npusim in (None, "1"):
        done = run("-c", code.replace("assert not", "_ =") if npusim else code, npusim=npusim)
        assert (done.stdout, done.stderr.count(SIMULATED)) == ("2.0\n", 1)


def test_not_without_autoloading(run: Run) -> None:
    code = "import torch; print(hasattr(torch, 'npu'))"
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert run("-c", code, npusim="1", env=env).stdout == "False\n"


def test_a_wish_that_cannot_be_read(run: Run) -> None:
    done = run("-c", "import torch", npusim="yes", fails=True)
    assert "INGOT_NPUSIM must be 1 (simulate an NPU), 0 or unset, not 'yes'" in done.stderr


@pytest.mark.parametrize("way", ["runner", "variable", "code"])
def test_a_real_torch_npu_wins(run: Run, tmp_path: Path, way: str) -> None:
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("real = True\n")
    file = tmp_path / "script.py"
    file.write_text(
        "import torch, torch_npu, sys\n"
        "print(torch_npu.real, hasattr(torch, 'npu'), torch._C._get_privateuse1_backend_name())\n"
        "print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == '_Finder'])\n"
    )
    if way == "code":
        text = file.read_text()
        file.write_text("import ingot.npusim\nprint(ingot.npusim.install())\n" + text)
    args = ["-m", "ingot.npusim"] if way == "runner" else []
    npusim = "1" if way == "variable" else None
    done = run(*args, str(file), npusim=npusim, before=(str(tmp_path),))
    expected = "True False privateuseone\n[]\n"
    assert done.stdout == ("False\n" if way == "code" else "") + expected
    assert "nothing is simulated, because there is a torch_npu: " + str(tmp_path) in done.stderr


def test_runner_leaves_as_the_script_does(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text("import sys; print('here'); sys.exit(3)\n")
    (tmp_path / "fail.py").write_text("raise KeyError('lost')\n")
    done = run("-m", "ingot.npusim", str(tmp_path / "leave.py"), fails=True)
    assert (done.returncode, done.stdout) == (3, "here\n")
    done = run("-m", "ingot.npusim", str(tmp_path / "fail.py"), fails=True)
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'lost'\n")


def test_runner_runs_modules(run: Run, script: str) -> None:
    folder = Path(script).parent
    code = SCRIPT.replace('sys.argv[0].rpartition("/")[0]', f"{str(folder)!r}")
    (folder / "script.py").write_text(code)
    done = run("-m", "ingot.npusim", "-m", "script", "a", "-b", cwd=folder)
    assert done.stdout == EXPECTED


def test_runner_explains_itself(run: Run) -> None:
    help_text = run("-m", "ingot.npusim", "--help").stdout
    assert help_text.startswith("usage: python -m ingot.npusim")
    for name in (
        "npu_fusion_attention",
        "torch_npu.optim",
        "NpuFusedAdamW",
        "transfer_to_npu",
        "max_memory_allocated",
        "hccl",
        "INGOT_NPUSIM_DEVICES",
    ):
        assert name in help_text
    for args in ([], ["--nonsense"], ["-m"]):
        done = run("-m", "ingot.npusim", *args, fails=True)
        assert done.returncode == 2 and done.stderr.startswith("usage: python -m ingot.npusim")
    done = run("-m", "ingot.npusim", "missing.py", fails=True)
    assert "there is no file 'missing.py'" in done.stderr


def test_child_processes_have_it_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(
        "import multiprocessing, torch\n"
        "def work(n):\n"
        "    import torch_npu\n"
        "    return torch.full((n,), 2.0).npu().sum().item()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [1, 3]))\n"
    )
    done = run("-m", "ingot.npusim", str(tmp_path / "parent.py"))
    assert done.stdout == "[2.0, 6.0]\n"
