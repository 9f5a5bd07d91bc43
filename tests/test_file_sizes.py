"""No source file grows beyond what can be read in one sitting."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 250  # lines
KINDS = {".py", ".pyi", ".c", ".cpp", ".h", ".inc"}
FOLDERS = ["src", "csrc", "tests", "benchmarks", "examples", "packaging", "docs_site"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_too_long(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    assert files
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
    }
    assert {name: lines for name, lines in lengths.items() if lines > LIMIT} == {}
