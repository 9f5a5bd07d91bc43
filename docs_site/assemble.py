"""Builds the documentation site from README.md, docs/, CHANGELOG.md and the docstrings, in English and in Chinese.

    python docs_site/assemble.py --output out/site

The pages are laid out as they are in the repository, so that their links hold unchanged; mkdocs then builds each
language and fails for a broken link or any other warning. Pages that navigation.py does not name are added under
"More".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from navigation import NAVIGATION
from reference import api_pages

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "docs_site"

LINK = re.compile(r"\]\(([^)\s#]+)")
TRANSLATION = re.compile(r"(\]\([^)\s#]+)\.zh-CN\.md")
# A line that is nothing but the switch between the languages of a page.
SWITCH = re.compile(
    r"^(?:English \| )?\[(?:English|中文|简体中文)\]\(\S+\)(?: \| 简体中文)?\n+", re.MULTILINE
)
NOT_TRANSLATED = "*本页目前只有英文。*"
# What begins a block of its own, so that the line before it does not go on there.
BLOCK = re.compile(r"$|[-+*] |\d+\. |[#|>]|```|!\[|<")
IDEOGRAPH = re.compile("[\u4e00-\u9fff]")
PUNCTUATION = re.compile("[\u2018-\u201d\u3000-\u303f\uff00-\uffef]")  # of full width


def read(path: Path) -> str:
    """A page of the repository, without the link to its translation: the site has a switch for that."""
    return SWITCH.sub("", path.read_text(encoding="utf-8"))


def with_english_anchors(chinese: str, english: str) -> str:
    """Give every heading of a translation the anchor of the original too: untranslated pages link to it."""
    slugs = [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings(english)
    ]
    own = headings(chinese)
    if len(own) != len(slugs):
        sys.exit(f"{own[0]}: {len(own)} headings, but {len(slugs)} in the original")
    for title, slug in zip(own, slugs, strict=True):
        chinese = chinese.replace(f"# {title}\n", f'# {title} <a id="{slug}"></a>\n', 1)
    return chinese


def join_chinese(text: str) -> str:
    """Join the lines of Chinese sentences: a browser would show the end of a line as a space."""
    joined: list[str] = []
    code = False
    for line in text.split("\n"):
        code ^= line.startswith("```")
        if joined and not code and without_space(joined[-1], line.lstrip()):
            joined[-1] += line.lstrip()
        else:
            joined.append(line)
    return "\n".join(joined)


def without_space(line: str, following: str) -> bool:
    """Whether a line goes on in the next one with no space between: in Chinese, or at Chinese punctuation."""
    if re.match(r"#|\||```|$", line) or BLOCK.match(following):
        return False
    ends, begins = line[-1], following[0]
    if PUNCTUATION.match(ends) or PUNCTUATION.match(begins):
        return True
    return bool(IDEOGRAPH.match(ends) and IDEOGRAPH.match(begins))


def headings(text: str) -> list[str]:
    """The headings of a page, in order; comments in code look like them."""
    return re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)


def repository_pages() -> dict[str, Path]:
    """The English pages: where they lie in the site, and where in the repository."""
    found = {"index.md": ROOT / "README.md"}
    top = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    for path in (*top, *sorted((ROOT / "docs").glob("**/*.md"))):
        if path.exists() and not path.name.endswith(".zh-CN.md"):
            found[path.relative_to(ROOT).as_posix()] = path
    return found


def lay_out(folder: Path, chinese: bool) -> list[str]:
    """Write the pages of one language and the files they link to; the names of the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = repository_pages()
    for name, source in pages.items():
        translation = source.with_suffix(".zh-CN.md")
        text = read(source)
        if chinese and translation.exists():
            text = with_english_anchors(join_chinese(read(translation)), text)
            text = TRANSLATION.sub(r"\1.md", text)  # the site has both languages under one name
        elif chinese:
            text = with_notice(text)
        text = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", text)
        write(folder / name, text)
        for target in LINK.findall(text):
            file = (source.parent / target).resolve()
            if "://" not in target and file.is_file() and file.suffix != ".md":
                copy = folder / file.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    reference = api_pages()
    for name, text in reference.items():
        write(folder / name, with_notice(text) if chinese else text)
    for asset in ("site.css", "iframe-worker.js"):
        shutil.copyfile(HERE / asset, folder / asset)
    write(folder / "images" / "favicon.svg", (HERE / "favicon.svg").read_text())
    return [*pages, *reference]


def with_notice(text: str) -> str:
    """A page of the Chinese site that is in English, with a line under its title that says so."""
    return re.sub(r"\A(# .*\n)", rf"\1\n{NOT_TRANSLATED}\n", text)


def write(path: Path, text: str) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def navigation(pages: list[str], chinese: bool) -> list[dict[str, object]]:
    """The navigation of one language, of the pages there are."""
    sections: list[dict[str, object]] = []
    named = set()
    for english, other, entries in NAVIGATION:
        there = [{zh if chinese else en: page} for en, zh, page in entries if page in pages]
        named |= {page for _, _, page in entries}
        if there:
            sections.append({other if chinese else english: there})
    more = sorted(set(pages) - named)
    return [*sections, {"更多" if chinese else "More": more}] if more else sections


def build(work: Path, output: Path, chinese: bool) -> None:
    """Build the site of one language; a warning is an error."""
    language = "zh" if chinese else "en"
    pages = lay_out(work / language, chinese)
    options = {
        "show_root_heading": True,
        "show_root_full_path": False,
        "heading_level": 2,
        "show_source": False,
        "show_bases": False,  # they are not in the reference
        "docstring_section_style": "list",
        "separate_signature": True,
        "show_signature_annotations": False,
        "members": False,
        "merge_init_into_class": True,
        "extensions": [str(HERE / "docstrings.py")],
    }
    config = {
        "INHERIT": str(HERE / "mkdocs.yml"),
        "site_description": "融合的 PyTorch 优化器"
        if chinese
        else "Fused optimizers for PyTorch on every device",
        "docs_dir": str(work / language),
        "site_dir": str(output / "zh" if chinese else output),
        "nav": navigation(pages, chinese),
        "hooks": [str(HERE / "hooks.py")],
        "theme": {"language": language},
        "extra": {
            "alternate": [
                {"name": "English", "link": "/@en/", "lang": "en"},
                {"name": "中文", "link": "/@zh/", "lang": "zh"},
            ]
        },
        "plugins": [
            "search",
            "offline",
            {
                "mkdocstrings": {
                    "handlers": {"python": {"paths": [str(ROOT / "src")], "options": options}}
                }
            },
        ],
    }
    file = work / f"mkdocs.{language}.yml"
    file.write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    # Not --quiet: it hides warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(file)]
    # The theme would advertise its successor in every build.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def main() -> None:
    """Build both languages; English first, because mkdocs empties the folder it builds into."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "site")
    output = parser.parse_args().output.resolve()
    work = ROOT / "build" / "docs-site"
    for chinese in (False, True):
        build(work, output, chinese)
    print(f"built {output / 'index.html'} and {output / 'zh' / 'index.html'}")


if __name__ == "__main__":
    main()
