"""Makes the language switch of a page lead to that page in the other language, and more (a mkdocs hook)."""

import logging
from typing import Any


def on_startup(**others: Any) -> None:
    """Keep the segmenter of Chinese text from reporting how long it took to load."""
    logging.getLogger("jieba").setLevel(logging.WARNING)


def on_page_content(html: str, *, page: Any, **others: Any) -> str:
    """Keep the table of registers, many pages long, out of the search: whoever looks for LAMB means the optimizer."""
    if not page.url.endswith("kernels.html"):
        return html
    return html.replace("<table>", "<table data-search-exclude>")


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Replace the marks that assemble.py put into ``extra.alternate`` by relative links."""
    chinese = config.theme["language"] == "zh"
    root = "../" * (page.url.count("/") + chinese)
    return output.replace('"/@en/"', f'"{root}{page.url}"').replace(
        '"/@zh/"', f'"{root}zh/{page.url}"'
    )


def on_post_template(output: str, *, config: Any, **others: Any) -> str:
    """The page for what is not found has no other language: both lead to the start."""
    return output.replace('"/@en/"', '"/"').replace('"/@zh/"', '"/zh/"')
