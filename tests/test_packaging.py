"""What is packed: the source archive, the wheel with and without a compiler, and the metadata."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import ingot

ROOT = Path(__file__).parent.parent
VARIABLES = ("CXX", "INGOT_PURE", "INGOT_REQUIRE_NATIVE")


def build(kind: str, source: Path, output: Path, **variables: str) -> Path | None:
    """Builds a "sdist" or "wheel" with the tools of this environment; None if the build fails."""
    output.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    code = f"from scikit_build_core.build import build_{kind}; build_{kind}({str(output)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    made = list(output.iterdir())
    assert len(made) == (done.returncode == 0), done.stdout + done.stderr
    return made[0] if made else None


def package_files() -> set[str]:
    """The files of the package as they should be in a wheel."""
    source = ROOT / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / "ingot").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source archive: everything below is built from it, as pip would."""
    folder = tmp_path_factory.mktemp("sdist")
    archive = build("sdist", ROOT, folder / "dist")
    assert archive is not None
    shutil.unpack_archive(archive, folder)
    return folder / f"ingot-{ingot.__version__}"


@pytest.fixture(scope="module")
def pure_wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = build("wheel", unpacked, tmp_path_factory.mktemp("pure"), INGOT_PURE="1")
    assert wheel is not None
    return wheel


@pytest.fixture(scope="module")
def metadata(pure_wheel: Path) -> Message:
    name = f"ingot-{ingot.__version__}.dist-info/METADATA"
    return Parser().parsestr(zipfile.ZipFile(pure_wheel).read(name).decode())


def test_source_archive_has_all_that_a_build_needs(unpacked: Path) -> None:
    packed = {
        path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()
    }
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.*")}
    native = {name for name in native if "__pycache__" not in name}
    assert "csrc/generate/generate.py" in native
    top = {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "PKG-INFO"}
    assert top | native | {f"src/{name}" for name in package_files()} <= packed
    junk = {name for name in packed if re.search(r"\.venv|\.git/|__pycache__|\.so$|^build/", name)}
    assert not junk


def test_pure_wheel_is_the_package_and_nothing_else(pure_wheel: Path) -> None:
    assert pure_wheel.name == f"ingot-{ingot.__version__}-py3-none-any.whl"
    packed = set(zipfile.ZipFile(pure_wheel).namelist())
    information = f"ingot-{ingot.__version__}.dist-info/"
    files = {name for name in packed if not name.startswith(information)}
    assert files == package_files() | {"ingot_npusim.pth"}
    assert "ingot/py.typed" in packed
    assert f"{information}licenses/LICENSE" in packed


def test_metadata(metadata: Message) -> None:
    assert metadata["Version"] == ingot.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    needs = metadata.get_all("Requires-Dist") or []
    assert [need for need in needs if "extra ==" not in need] == ["torch>=2.10"]
    assert metadata["Author"] == "The Ingot developers"
    classifiers = metadata.get_all("Classifier") or []
    versions = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert versions[0] == metadata["Requires-Python"].removeprefix(">=")
    assert versions == sorted(versions, key=lambda v: int(v.split(".")[1]))


def test_every_entry_point_leads_somewhere(pure_wheel: Path) -> None:
    name = f"ingot-{ingot.__version__}.dist-info/entry_points.txt"
    text = zipfile.ZipFile(pure_wheel).read(name).decode()
    targets = dict(re.findall(r"^(\w+) = ([\w.]+:\w+)$", text, re.MULTILINE))
    assert targets["ingot"] == "ingot.cli:main"
    for key, target in targets.items():
        point = EntryPoint(key, target, "")
        assert callable(getattr(import_module(point.module), point.attr))


def test_without_a_compiler_the_wheel_is_pure(unpacked: Path, tmp_path: Path) -> None:
    wheel = build("wheel", unpacked, tmp_path / "dist", CXX="false")
    assert wheel is not None and wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_require_native_makes_that_an_error(unpacked: Path, tmp_path: Path) -> None:
    variables = {"CXX": "false", "INGOT_REQUIRE_NATIVE": "1"}
    assert build("wheel", unpacked, tmp_path / "dist", **variables) is None


def test_the_development_tools_are_pinned(metadata: Message) -> None:
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.split(";")[0] for line in lines]  # without the platforms a tool is for
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    wanted = {
        re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", need)[0]).lower()  # type: ignore[index]
        for need in metadata.get_all("Requires-Dist") or []
        if re.search(r"extra == .(demo|test|dev).", need)
    }
    assert wanted - {"ingot"} <= pinned


@pytest.mark.parametrize("name", ["requirements-docs.txt", "requirements-wheel.txt"])
def test_the_tools_of_other_environments_are_pinned(name: str) -> None:
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+", line), line


def test_every_module_can_be_imported_first() -> None:
    """No order of imports is needed: each module is the first of the package in its turn."""
    code = """
import importlib, pkgutil, sys
import ingot
found = [m.name for m in pkgutil.walk_packages(ingot.__path__, "ingot.")]
names = [name for name in found if not name.endswith("__main__") and ".npusim." not in name and name != "ingot._native"]
assert len(names) > 30, names
for name in names:
    for loaded in [n for n in sys.modules if n.split(".")[0] == "ingot" and n != "ingot._native"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("broken", [False, True], ids=["absent", "broken"])
def test_a_pure_install_says_that_it_is_one(pure_wheel: Path, tmp_path: Path, broken: bool) -> None:
    """A core that is not there is another matter than one that does not load."""
    shutil.unpack_archive(pure_wheel, tmp_path, "zip")
    if broken:
        (tmp_path / "ingot" / "_native.abi3.so").write_text("no library")
    code = f"""
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, {str(tmp_path)!r})
import ingot
from ingot.backends import native
assert ingot.__file__.startswith({str(tmp_path)!r}), ingot.__file__
print(native.NATIVE.unavailable())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    absent = "ingot was installed without the C++ core"
    expected = "the compiled core does not load" if broken else absent
    assert done.stdout.startswith(expected), done.stdout + done.stderr
