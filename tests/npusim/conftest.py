"""Fixtures of the tests of the simulated NPU.

The device cannot be taken out of a process again. Most tests here use it in pytest's own process, because
it leaves tensors on other devices alone. What needs a process without it, or asks for it in another way, runs
in a process of its own.
"""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from npusim_paths import ROOT, Run

import ingot.npusim
from ingot.step import transit


@pytest.fixture(scope="session", autouse=True)
def simulated_npu() -> None:
    assert ingot.npusim.install()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python in a process of its own; `npusim=1` sets INGOT_NPUSIM, `paths` come first to import."""
    paths = [str(Path(ingot.__file__).parents[1])]
    if not importlib.metadata.entry_points(group="torch.backends", name="ingot_npusim"):
        paths.append(str(_metadata(tmp_path_factory.mktemp("site"))))

    def run(
        *args: str,
        npusim: str | None = None,
        before: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        fails: bool = False,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        environment = {k: v for k, v in os.environ.items() if k != "INGOT_NPUSIM"}
        environment.update(env or {}, PYTHONPATH=os.pathsep.join([*before, *paths]))
        if npusim is not None:
            environment["INGOT_NPUSIM"] = npusim
        done = subprocess.run(
            [sys.executable, *args],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    return run


def _metadata(site: Path) -> Path:
    """What installing ingot would tell torch, for a source tree that is only on PYTHONPATH."""
    declared = 'ingot_npusim = "ingot.npusim.autoload:autoload"'
    assert declared in (ROOT / "pyproject.toml").read_text()
    info = site / "ingot-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ingot\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{declared.replace(chr(34), '')}\n")
    return site


@pytest.fixture(params=[100, 1 << 22], ids=["small pieces", "one piece"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is run in several pieces, and whole."""
    monkeypatch.setattr(transit, "PIECE", request.param)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bucket is run in many pieces."""
    monkeypatch.setattr(transit, "PIECE", 20)
