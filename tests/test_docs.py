"""The documentation: its examples run, its links lead somewhere, the translation keeps up."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ingot
from ingot import optim

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(ingot.__path__, "ingot.")
    if not module.name.endswith("__main__")
]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_lines(page: Path) -> str:
    """The python blocks of a page as one program, each line where it stands in the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for block in FENCE.finditer(text):
        if block[1] == "python":
            first = text.count("\n", 0, block.start(2))
            code = block[2].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_lines(page).strip()], ids=page_id
)
def test_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    program = tmp_path / f"{page.stem}.py"
    program.write_text(python_lines(page) + "\n")
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"(line numbers are those of {page_id(page)})\n{done.stderr}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("name", optim.__all__)
def test_every_optimizer_has_an_example(name: str) -> None:
    examples = doctest.DocTestFinder(recurse=False).find(getattr(optim, name))[0].examples
    assert any(".step()" in example.source for example in examples)


@pytest.mark.parametrize("name", optim.__all__)
def test_the_help_of_an_optimizer_names_every_option(name: str) -> None:
    """Its own, and those that all share, with a pointer that works."""
    cls = getattr(optim, name)
    shared = inspect.signature(ingot.optimizer.FusedOptimizer).parameters.keys() - {
        "params",
        "defaults",
        "unknown",  # is refused
    }
    text = inspect.getdoc(cls) or ""
    for option in shared | inspect.signature(cls).parameters.keys():
        assert re.search(rf"^ *\**{option}: |``{option}``", text, re.MULTILINE), option
    assert "``help(ingot.optimizer.FusedOptimizer)``" in text


def test_help_works_after_importing_the_package_alone() -> None:
    program = "import ingot; help(ingot.optim.NpuFusedLamb); help(ingot.optimizer.FusedOptimizer)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bias_correction: correct" in done.stdout and "rounding_seed: seed of" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    inside = [target.split("#")[0] for target in targets if "://" not in target]
    missing = [target for target in inside if target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["README", "docs/npusim"])
def test_translation_has_the_same_code_and_links(name: str) -> None:
    english, chinese = ROOT / f"{name}.md", ROOT / f"{name}.zh-CN.md"
    code = [
        [block[0] for block in FENCE.finditer(page.read_text(encoding="utf-8"))]
        for page in (english, chinese)
    ]
    assert code[0] == code[1]
    links = [set(LINK.findall(page.read_text(encoding="utf-8"))) for page in (english, chinese)]
    assert links[0] - {chinese.name} == links[1] - {english.name}
