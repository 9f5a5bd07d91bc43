"""What every test relies on: this folder can be imported from, and random numbers repeat."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Tests in folders below import `cases` and `training` from here.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def same_random_numbers() -> Iterator[None]:
    """Every test starts from the same seed and leaves torch's defaults alone."""
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
