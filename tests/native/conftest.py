"""The tests of the native core need the core; without it they are skipped, or fail where it was required."""

import os

import pytest

from ingot.backends.native import NATIVE

reason = NATIVE.unavailable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, unless INGOT_REQUIRE_NATIVE says that the core must be there."""
    if reason is None:
        return
    assert not os.environ.get("INGOT_REQUIRE_NATIVE"), reason
    for item in items:
        if item.path.parent.name == "native" and "codegen" not in item.path.name:
            item.add_marker(pytest.mark.skip(reason=reason))
