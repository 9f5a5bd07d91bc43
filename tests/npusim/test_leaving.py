"""The end of a process on the simulated NPU: it waits for the threads of autograd."""

import hashlib
import sys
import threading
from pathlib import Path

import pytest
from npusim_paths import Run

from ingot.npusim import leaving


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what threads do")
@pytest.mark.parametrize("name", ["pt_autograd_9", "others"])
def test_waits_for_threads_of_autograd_alone(name: str) -> None:
    started, done, over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        started.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # without Python's lock
        done.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    leaving.let_autograd_rest()
    seen = done.is_set()
    over.set()
    thread.join()
    assert seen == (name == "pt_autograd_9")


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never rests does not keep the process."""
    activity = iter(range(10**9))
    monkeypatch.setattr(leaving, "_activity", lambda: [f"\nState:\tS {next(activity)}"])
    monkeypatch.setattr(leaving, "PATIENCE", 0.05)
    leaving.let_autograd_rest()
    assert next(activity) > 3


def test_it_is_asked_at_the_end(run: Run) -> None:
    code = "import ingot.npusim\nfrom ingot.npusim import leaving\n"
    code += "leaving.let_autograd_rest = lambda: print('asked')\ningot.npusim.install()"
    assert run("-c", code).stdout == "asked\n"
