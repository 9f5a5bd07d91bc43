"""`python -m ingot.selftest --device npu` on the simulated NPU: the report that people with hardware are asked for."""

import re

import pytest
import torch

from ingot import selftest
from ingot.backends import LISTS
from ingot.optim import NpuFusedLamb, NpuFusedSGD


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of two optimizers."""
    kinds = {kind.__name__: kind for kind in (NpuFusedLamb, NpuFusedSGD)}
    monkeypatch.setattr(selftest, "optimizers", lambda: kinds)
    monkeypatch.setattr(selftest, "STEPS", 2)
    monkeypatch.setattr(selftest, "SHAPES", [(7,), (64, 65)])
    monkeypatch.setattr(selftest, "LONG", [(2, 9000)])


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--device", "npu", "--quick"]) == 0
    report = capsys.readouterr().out
    assert "device npu" in report and report.endswith("all is well on lists, reference\n")
    for kind in ("NpuFusedLamb", "NpuFusedSGD"):
        for backend in ("lists", "reference"):
            for options in selftest.SETTINGS:
                line = rf"^{kind} +{backend} +{options} +ok +differs by \S+, same bits twice$"
                assert re.search(line, report, re.MULTILINE), (kind, backend, options)
    for kind in ("AdamW", "SGD"):
        assert len(re.findall(rf"^{kind}, .* \d+\.\d{{3}} ms$", report, re.MULTILINE)) == 2 * 5


def test_what_is_wrong_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend with another result, and one that fails on the device."""
    monkeypatch.setattr(selftest, "SETTINGS", {"plain": selftest.SETTINGS["plain"]})
    monkeypatch.setattr(selftest, "speed", lambda *chosen: [])
    run = type(LISTS).run

    def wrong(self: object, bucket: object) -> None:
        if bucket.variant.two_pass:
            raise NotImplementedError("no operator of that name for PrivateUse1")
        run(LISTS, bucket)
        torch._foreach_mul_(bucket.params, 1.001)

    monkeypatch.setattr(type(LISTS), "run", wrong)
    assert selftest.main(["--device", "npu"]) == 1
    report = capsys.readouterr().out
    assert re.search(r"NpuFusedLamb +lists .* FAILED: no operator of that name", report)
    assert re.search(r"NpuFusedSGD +lists .* FAILED differs by 2\..e-03, same bits twice", report)
    assert report.endswith("2 FAILED\n")
