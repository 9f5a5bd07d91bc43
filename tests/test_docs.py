"""The documentation: its examples run, its links lead somewhere, the translation keeps up."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import ingot
from ingot import optim

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
TRANSLATED = {
    page: page.with_suffix("").with_suffix(".md") for page in PAGES if ".zh-CN." in page.name
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block after <!-- needs: package --> is run only where the package is installed.
NEEDS = re.compile(r"^<!-- needs: ([\w ]+) -->\n\Z", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(ingot.__path__, "ingot.")
    if not module.name.endswith("__main__")
]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A python block of a page."""

    line: int  # of its first line of code, counted from 0
    code: str
    needs: tuple[str, ...]  # packages beside torch and what the tests need


def python_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for block in FENCE.finditer(text):
        if block[1] == "python":
            mark = NEEDS.search(text[: block.start()])
            needs = tuple(mark[1].split()) if mark else ()
            found.append(Block(text.count("\n", 0, block.start(2)), block[2], needs))
    return found


def run(page: Path, blocks: Iterable[Block], folder: Path) -> None:
    """Run blocks as one program, each line where it stands in the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.code.splitlines()
    program = folder / f"{page.stem}.py"
    program.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, program.name], cwd=folder, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"(line numbers are those of {page_id(page)})\n{done.stderr}"


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page not in TRANSLATED and any(not block.needs for block in python_blocks(page))
    ],
    ids=page_id,
)
def test_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Those of translations are the same, which is tested below."""
    run(page, [block for block in python_blocks(page) if not block.needs], tmp_path)


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page_id(page)}:{block.line}-{'-'.join(block.needs)}")
        for page in PAGES
        for block in python_blocks(page)
        if block.needs and page not in TRANSLATED
    ],
)
def test_an_example_that_needs_a_package_runs(page: Path, block: Block, tmp_path: Path) -> None:
    """By itself: it uses nothing of other blocks."""
    missing = [name for name in block.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{page_id(page)}, line {block.line}: needs {', '.join(missing)}")
    run(page, [block], tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str) -> None:
    if (
        name == "ingot.npusim"
    ):  # torch takes no new device once a backward pass has run in the process
        program = f"import doctest, {name}; assert not doctest.testmod({name}).failed"
        subprocess.run([sys.executable, "-c", program], check=True)
        return
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


@pytest.mark.parametrize("chinese", TRANSLATED, ids=page_id)
def test_translation_has_the_same_code_and_links(chinese: Path) -> None:
    english = TRANSLATED[chinese]
    code = [
        [block[0] for block in FENCE.finditer(page.read_text(encoding="utf-8"))]
        for page in (english, chinese)
    ]
    assert code[0] == code[1]
    links = [set(LINK.findall(page.read_text(encoding="utf-8"))) for page in (english, chinese)]
    assert chinese.name in links[0] and english.name in links[1]
    # A heading has another anchor in another language.
    targets = [{link.split("#")[0] for link in found} for found in links]
    others = targets[1] - {english.name}
    assert targets[0] - {chinese.name} == {link.replace(".zh-CN.md", ".md") for link in others}
    # A reader of Chinese is led to Chinese pages, where there are any.
    assert not [
        link for link in others if (chinese.parent / link).with_suffix(".zh-CN.md").exists()
    ]
    # Measured figures are in tables; small whole numbers may stand as words in one of the languages.
    rows = [
        re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in (english, chinese)
    ]
    figures = [Counter(re.findall(r"\d+\.\d+|\d{3,}", "\n".join(table))) for table in rows]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("chinese", TRANSLATED, ids=page_id)
def test_tables_of_a_translation_have_the_same_rows(chinese: Path) -> None:
    """A new backend or option must not be missing in one language."""
    english, other = (
        re.findall(r"^\|.*\|$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in (TRANSLATED[chinese], chinese)
    )
    assert first_column(other) == first_column(english)


def first_column(rows: Iterable[str]) -> list[list[str]]:
    """The code in the first cell of every row; the words around it are translated, and so is their order."""
    return [sorted(re.findall(r"`[^`]+`", row.split("|")[1])) for row in rows]


def quoted_errors() -> list[str]:
    """The headings of the page of questions and errors that quote a message of ours."""
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    others = ("unexpected keyword argument", "does not allow for", "Failed to initialize NumPy")
    quoted = re.findall(r"^### `(.*)`$", text, re.MULTILINE)
    return [message for message in quoted if not message.startswith(others)]


@pytest.mark.parametrize("message", quoted_errors())
def test_errors_that_are_explained_exist(message: str) -> None:
    """Somebody who pastes the message into the search of the site must find it."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    # Messages go over several lines and have values in them; a heading leaves the values out.
    joined = re.sub(r'"\s*f?"', "", "\n".join(sources))
    plain = re.sub(r"\{[^{}]*\}", "", joined)
    assert message in re.sub(r" +", " ", plain)
