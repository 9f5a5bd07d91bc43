"""Every optimizer has a test case, and every case is complete."""

import pytest

import ingot
from cases import CASES, Case, each_case
from ingot import optim


def test_every_optimizer_has_a_case() -> None:
    assert {case.kind.__name__ for case in CASES.values()} == set(optim.__all__)


def test_every_optimizer_is_exported_at_the_top_too() -> None:
    assert set(optim.__all__) <= set(ingot.__all__)
    for name in optim.__all__:
        assert getattr(ingot, name) is getattr(optim, name)
    with pytest.raises(AttributeError, match="NpuFusedNothing"):
        _ = ingot.NpuFusedNothing


@each_case
def test_a_case_is_named_like_its_source_file(case: Case) -> None:
    assert CASES[case.name] is case
    assert case.kind.__module__ == f"ingot.optim.{case.name}"


@each_case
def test_a_case_tries_every_option(case: Case) -> None:
    """An option that no set of options mentions would not be tested by anything."""
    tried = {name for options in case.options.values() for name in options}
    refused = {name for bad in case.bad for name in bad.options}
    assert {*case.signature, *case.keywords} <= tried
    assert {*case.signature, *case.keywords} <= refused
