"""`python -m ingot.selftest`: what it calls FAILED, with a driver for Triton that compiles and launches nothing."""

import os
import re
from collections.abc import Iterator

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets in this process", allow_module_level=True)

import fake_triton
from ingot import selftest
from ingot.backends import TRITON
from ingot.backends.triton_kernels import build
from ingot.declare.language import Refused
from ingot.optim import NpuFusedLamb, NpuFusedSGD
from ingot.step.bucket import Bucket

pytestmark = pytest.mark.filterwarnings("ignore:ingot. Triton cannot compile")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two steps of two optimizers, on the two backends that matter; the CPU stands for an accelerator."""
    kinds = {kind.__name__: kind for kind in (NpuFusedLamb, NpuFusedSGD)}
    monkeypatch.setattr(selftest, "optimizers", lambda: kinds)
    monkeypatch.setattr(selftest, "STEPS", 2)
    monkeypatch.setattr(selftest, "SHAPES", [(7,), (4, 3)])
    monkeypatch.setattr(selftest, "LONG", [(2, 9)])
    monkeypatch.setattr(selftest, "speed", lambda *chosen: [])
    monkeypatch.setattr(selftest, "taking", lambda device: ["triton", "reference"])
    fake_triton.install(monkeypatch, "cpu")
    yield
    fake_triton.forget()


def report_of(capsys: pytest.CaptureFixture[str], code: int) -> dict[tuple[str, str, str], str]:
    """The verdict of each line, by optimizer, backend and setting."""
    assert selftest.main(["--device", "cpu", "--quick"]) == code
    verdicts = {}
    for line in capsys.readouterr().out.splitlines():
        if found := re.match(r"(\w+) +(triton|reference) +(.*?) +(ok|FAILED|declined)\b.*", line):
            verdicts[found[1], found[2], found[3]] = found[0][found.start(4) :]
    assert len(verdicts) == 2 * 2 * len(selftest.SETTINGS)
    return verdicts


@pytest.mark.parametrize("error", ["compiler", "translator"])
def test_a_broken_compiler_is_no_decline(
    error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in one setting, whatever its types: else the report would say that all is well without one Triton kernel."""
    make = build.Kernel.of

    def broken(text: str, name: str) -> build.Kernel:
        if error == "translator":
            raise Refused("no such word")
        return make("def nonsense(a):\n    tl.no_such_word(a)\n", name)

    monkeypatch.setattr(build.Kernel, "of", broken)
    why = {"compiler": "Triton cannot compile the kernel", "translator": "cannot be translated"}
    for (_, backend, _), verdict in report_of(capsys, 1).items():
        if backend == "triton":
            assert (
                verdict.startswith("FAILED: backend='triton' cannot run") and why[error] in verdict
            )
        else:
            assert verdict.startswith("ok")


def test_what_may_be_declined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend without kernels for some types leaves them to others; float32 is what every backend is for."""

    def prepare(self: object, bucket: Bucket) -> str | None:
        return "its kernels are not made for any of this"

    monkeypatch.setattr(type(TRITON), "prepare", prepare)
    for (_, backend, name), verdict in report_of(capsys, 1).items():
        if backend == "triton":
            in_float32 = name in ("plain", "clipped", "long rows", "overflow skipped")
            assert verdict.startswith("FAILED" if in_float32 else "declined"), (name, verdict)


@pytest.mark.parametrize("error", [ValueError("an argument"), ImportError("no launcher.c")])
def test_errors_of_a_driver_do_not_end_the_report(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object, *arguments: object) -> None:
        raise error

    monkeypatch.setattr(build.Kernel, "problem", lambda *kernel: None)
    monkeypatch.setattr(build.Kernel, "launch", fails)
    verdicts = report_of(capsys, 1)
    assert all(v == f"FAILED: {error}" for (_, b, _), v in verdicts.items() if b == "triton")


def test_a_step_that_is_not_skipped_is_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of the step with the overflow are infinite: where it is made, all numbers are lost."""
    monkeypatch.setattr("ingot.step.whole.skips", lambda *step: False)
    monkeypatch.setattr(build.Kernel, "problem", lambda *kernel: None)
    monkeypatch.setattr(build.Kernel, "launch", lambda *kernel: None)
    for (_, backend, name), verdict in report_of(capsys, 1).items():
        if backend == "reference":
            assert verdict.startswith("FAILED" if name == "overflow skipped" else "ok"), name
