"""Makes the language switch of every page lead to the same page in the other language (a mkdocs hook)."""

import logging
from typing import Any


def on_startup(**others: Any) -> None:
    """Keep the segmenter of Chinese text from reporting how long it took to load."""
    logging.getLogger("jieba").setLevel(logging.WARNING)


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
