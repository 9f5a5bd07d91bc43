"""What every test relies on: this folder can be imported from, random numbers repeat, known defects are marked."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Tests in folders below import `cases` and `training` from here.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--every`: all combinations of parameters, instead of those that thinning.py chooses."""
    parser.addoption("--every", action="store_true", help="run every combination of parameters")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out combinations, and expect a known defect to fail until it leaves its table."""
    from known_defects import FAILING
    from thinning import chosen

    # A test that is asked for by the name of its combination is run.
    if not config.getoption("--every") and not any("[" in argument for argument in config.args):
        kept = chosen(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]

    for item in items:
        for pattern, reason in FAILING.items():
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(autouse=True)
def same_random_numbers() -> Iterator[None]:
    """Every test starts from the same seed and leaves torch's defaults alone."""
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()


@pytest.fixture
def roots_for_codes(monkeypatch: pytest.MonkeyPatch, backend: str, state_dtype: str | None) -> None:
    """For tests that compare with another backend: correctly rounded roots where codes would show the others."""
    from state_types import round_roots_correctly

    if backend == "lists" and state_dtype == "8bit":
        round_roots_correctly(monkeypatch)
