"""The documentation site as it is laid out for mkdocs: every page is in it, no link leads out of it.

`make docs-site` builds it from that, and fails for whatever mkdocs finds wrong.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import runpy
import sys
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import pytest

import ingot
from ingot import optim
from ingot.optimizer import FusedOptimizer

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s#]+)")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    sys.path.append(str(ROOT / "docs_site"))  # for what it imports
    spec = importlib.util.spec_from_file_location("assemble", ROOT / "docs_site" / "assemble.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(navigation: list[dict[str, list[str | dict[str, str]]]]) -> list[str]:
    """The pages of a navigation, in order."""
    entries = [entry for section in navigation for pages in section.values() for entry in pages]
    return [
        page
        for entry in entries
        for page in ([entry] if isinstance(entry, str) else entry.values())
    ]


@pytest.mark.parametrize("chinese", [False, True], ids=["english", "chinese"])
def test_every_page_is_in_the_navigation_once(
    site: ModuleType, tmp_path: Path, chinese: bool
) -> None:
    pages = site.lay_out(tmp_path, chinese)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")} == set(pages)
    found = listed(site.navigation(pages, chinese))
    assert sorted(found) == sorted(pages) and len(set(found)) == len(found)
    assert "docs/precision.md" in found and not any("zh-CN" in page for page in found)


def test_pages_that_do_not_exist_are_left_out_and_unknown_ones_are_added(site: ModuleType) -> None:
    navigation = site.navigation(["index.md", "docs/brand_new.md"], False)
    assert navigation == [{"Use": [{"Start": "index.md"}]}, {"More": ["docs/brand_new.md"]}]


@pytest.mark.parametrize("chinese", [False, True], ids=["english", "chinese"])
def test_links_lead_to_what_is_laid_out(site: ModuleType, tmp_path: Path, chinese: bool) -> None:
    checked = 0
    for name in site.lay_out(tmp_path, chinese):
        page = tmp_path / name
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in LINK.findall(text):
            if "://" not in target:
                assert (page.parent / target).is_file(), f"{name}: {target}"
                checked += 1
    assert checked > 30


def test_translations_are_used_and_untranslated_pages_say_so(
    site: ModuleType, tmp_path: Path
) -> None:
    site.lay_out(tmp_path, True)
    assert (tmp_path / "docs/choosing_an_optimizer.md").read_text().startswith("# 选择优化器")
    assert site.NOT_TRANSLATED in (tmp_path / "docs/numerics.md").read_text()
    assert site.NOT_TRANSLATED not in (tmp_path / "index.md").read_text()
    assert site.NOT_TRANSLATED in (tmp_path / "api/shared.md").read_text()
    assert "](docs/precision.md)" in (tmp_path / "index.md").read_text()
    assert not any("zh-CN.md)" in path.read_text() for path in tmp_path.rglob("*.md"))
    site.lay_out(tmp_path, False)
    english = (tmp_path / "docs/choosing_an_optimizer.md").read_text()
    assert english.startswith("# Which optimizer?") and "[中文]" not in english


def test_headings_of_translations_have_the_anchors_of_the_original(
    site: ModuleType, tmp_path: Path
) -> None:
    """Untranslated pages link to them."""
    site.lay_out(tmp_path, True)
    text = (tmp_path / "docs/precision.md").read_text(encoding="utf-8")
    assert '\n## 裁剪 <a id="clipping"></a>\n' in text
    with pytest.raises(SystemExit, match="一: 1 headings, but 2 in the original"):
        site.with_english_anchors("# 一\n", "# One\n\n## Two\n")


def test_lines_of_chinese_sentences_are_joined_without_a_space(site: ModuleType) -> None:
    pairs = {
        "- 若不一致，\n  只要通信": "- 若不一致，只要通信",  # noqa: RUF001
        "在 CPU 上。\nCPU 版": "在 CPU 上。CPU 版",
        "RMSpropTF\n（`ingot.AdamW`）": "RMSpropTF（`ingot.AdamW`）",  # noqa: RUF001
        "第一行\n  第二行\n第三行": "第一行第二行第三行",
    }
    assert {text: site.join_chinese(text) for text in pairs} == pairs
    kept = [
        "## 安装\n这样做",
        "一：\n- 二；\n- 三。",  # noqa: RUF001
        "一：\n\n二。",  # noqa: RUF001
        "一：\n| 二 |\n| 三 |",  # noqa: RUF001
        "使用 CPU\n的人",
        "做\nCPU 版",
        "```\n一，\n二\n```\n三",  # noqa: RUF001
    ]
    assert [site.join_chinese(text) for text in kept] == kept


def test_docstrings_become_markdown(site: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The docstring of Metrics, whose table is followed by a section, and those of parameters with defaults."""
    monkeypatch.setitem(sys.modules, "griffe", ModuleType("griffe"))
    for name in ("Extension", "Object"):
        monkeypatch.setattr(sys.modules["griffe"], name, object, raising=False)
    rules = runpy.run_path(str(ROOT / "docs_site" / "docstrings.py"))

    def markdown(text: str) -> str:
        holder = SimpleNamespace(docstring=SimpleNamespace(value=text), parent=None)
        rules["TerminalDocstrings"]().on_object(obj=holder)
        return str(holder.docstring.value)

    text = markdown(inspect.cleandoc(ingot.metrics.Metrics.__doc__ or ""))
    assert re.search(r"^\| `projected_rows` \| .* \|\n\nAttributes:$", text, re.M)
    assert markdown("lr: a rate, in [0, 1) (default (0.9, 0.999)).") == "lr: a rate, in [0, 1)."
    assert markdown("names: some\n    (default None: all).") == "names: some\n    (None: all)."
    text = markdown(inspect.cleandoc(optim.NpuFusedAdamW.__doc__ or ""))
    assert "(shared.md)" in text and "help(" not in text and "(default" not in text


@pytest.mark.parametrize(
    "line",
    [
        "[中文](a.zh-CN.md)",
        "[English](a.md)",
        "English | [简体中文](a.zh-CN.md)",
        "[English](a.md) | 简体中文",
    ],
)
def test_the_switch_of_a_page_gives_way_to_that_of_the_site(
    site: ModuleType, tmp_path: Path, line: str
) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"# A\n\n{line}\n\nText with a [link](b.md).\n", encoding="utf-8")
    assert site.read(page) == "# A\n\nText with a [link](b.md).\n"


def test_the_reference_has_every_optimizer(site: ModuleType) -> None:
    text = site.api_pages()["api/optimizers.md"]
    assert re.findall(r"^::: ingot\.optim\.(\w+)$", text, re.M) == sorted(optim.__all__)


def written_down(site: ModuleType) -> set[str]:
    """Every object that the reference names, members of classes included."""
    text = "\n".join(site.api_pages().values())
    names = set()
    for path, options in re.findall(r"^::: ingot\.(\S+)\n    options: (.*)$", text, re.M):
        members = re.search(r'"?members"?: (\[.*?\])', options)
        names |= {path} | {f"{path}.{name}" for name in json.loads(members[1] if members else "[]")}
    return names


def test_the_reference_has_every_public_member_of_the_shared_class(site: ModuleType) -> None:
    """Those of its bases in this package too: track_metrics is one. torch describes what is torch's."""
    bases = [kind for kind in FusedOptimizer.__mro__ if kind.__module__.startswith("ingot.")]
    public = {
        name
        for kind in bases
        for name, value in vars(kind).items()
        if not name.startswith("_") and isinstance(value, (FunctionType, property, classmethod))
    }
    assert {"step", "track_metrics", "metrics", "grad_norm", "check"} <= public
    found = written_down(site)
    assert {f"optimizer.FusedOptimizer.{name}" for name in public} <= found
    assert all(hasattr(FusedOptimizer, n.split(".")[-1]) for n in found if "FusedOptimizer." in n)
    assert "step.in_backward.ReleasedGradients.discard" in found


def test_the_reference_has_the_functions_and_the_metrics(site: ModuleType) -> None:
    found = written_down(site)
    functions = {name for name in ingot.__all__ if not isinstance(getattr(ingot, name), type)}
    assert functions == {"create_optimizer", "list_optimizers", "param_groups"}
    assert functions | {f"metrics.{name}" for name in ingot.metrics.__all__} <= found
