"""What the triton backend does on the host: launches, uploads and compilations, with a driver that launches nothing."""

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets in this process", allow_module_level=True)

import fake_triton
from cases import CASES
from fake_triton import FakeDriver
from ingot.backends import TRITON
from ingot.backends import triton as backend
from ingot.backends.triton_kernels import build, layout
from training import assert_unchanged, give_grads, make_params, picture


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    with pytest.MonkeyPatch.context() as patch:
        yield fake_triton.install(patch, "cpu")
    fake_triton.forget()


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    seen: list[Tensor] = []
    upload = layout.upload

    def counted(tensor: Tensor, device: torch.device) -> Tensor:
        seen.append(tensor)
        return upload(tensor, device)

    monkeypatch.setattr(layout, "upload", counted)
    return seen


def test_one_launch_for_a_thousand_tensors(fake: FakeDriver, uploads: list[Tensor]) -> None:
    params = make_params([(3, 5)] * 1000)
    optimizer = CASES["adamw"].make(params, backend="triton")
    give_grads(params, 0)
    optimizer.step()
    assert fake.launched == ["adamw"]
    first = len(uploads)
    optimizer.step()
    assert fake.launched == ["adamw"] * 2
    assert len(uploads) == first, "nothing was new"


def test_a_table_follows_its_tensors(fake: FakeDriver, uploads: list[Tensor]) -> None:
    params = make_params([(3, 5), (64,)])
    optimizer = CASES["adamw"].make(params, backend="triton")
    give_grads(params, 0)
    optimizer.step()
    for change in ("gradient", "parameter", "state"):
        before = len(uploads)
        kept = [params[1].grad, params[1].data, optimizer.state[params[1]]["exp_avg"]]
        if change == "gradient":
            params[1].grad = kept[0].clone()
        elif change == "parameter":
            params[1].data = kept[1].clone()
        else:
            optimizer.state[params[1]]["exp_avg"] = kept[2].clone()
        optimizer.step()
        (table,) = uploads[before:]
        addresses = [p.data_ptr() for p in params] + [p.grad.data_ptr() for p in params]
        addresses += [
            optimizer.state[p][n].data_ptr() for n in ("exp_avg", "exp_avg_sq") for p in params
        ]
        assert table[:-1].flatten().tolist() == addresses, change
        assert table[-1].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_launches_of_two_passes(fake: FakeDriver, name: str) -> None:
    for length, roles in [(100, ["first", "between", "second"]), (9000, ["first", "collect"])]:
        params = make_params([(3, length)])
        optimizer = CASES[name].make(params, backend="triton")
        give_grads(params, 0)
        fake.launched.clear()
        optimizer.step()
        seen = [each.rpartition("_")[2] for each in fake.launched]
        assert seen == roles if length == 100 else {*roles} <= {*seen} and len(seen) == 4


def test_it_is_chosen_by_itself(fake: FakeDriver) -> None:
    """The device stands for an accelerator here: nothing before it in the table takes its tensors."""
    optimizer = CASES["adamw"].make([param := Parameter(torch.ones(3))])
    param.grad = torch.ones(3)
    (bucket,) = optimizer._plan()
    assert TRITON.suits(bucket) and TRITON.runs_on(torch.device("cpu"))
    assert not TRITON.runs_on(torch.device("meta"))


def test_a_driver_of_triton_ascend(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 3.2 names the kind of its target, and no device of torch."""
    monkeypatch.delattr(FakeDriver, "get_active_torch_device")
    target = GPUTarget("npu", "Ascend910B3", 0)
    monkeypatch.setattr(FakeDriver, "get_current_target", lambda self: target)
    fake_triton.forget()
    assert TRITON.unavailable() is None and backend._driven() == "npu"
    assert build.options_here() == {"num_warps": 4, "enable_fp_fusion": False}


def test_a_failing_compiler_warns_once_and_names_the_kernel(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, name: str) -> build.Kernel:
        return make("def nonsense(a):\n    tl.no_such_word(a)\n", name)

    make = build.Kernel.of
    monkeypatch.setattr(build.Kernel, "of", broken)
    monkeypatch.setattr(type(TRITON), "suits", lambda self, bucket: True)
    monkeypatch.setattr("ingot.backends.TABLE", (TRITON, *__import__("ingot").backends.TABLE[2:]))
    params = make_params([(3, 5)])
    optimizer = CASES["adamw"].make(params)
    give_grads(params, 0)
    with pytest.warns(UserWarning, match="cannot compile the kernel adamw elementwise") as seen:
        optimizer.step()
        optimizer.step()
    assert len([each for each in seen if "ingot" in str(each.message)]) == 1
    assert not torch.equal(params[0], make_params([(3, 5)])[0]), "another backend made the steps"
    named = CASES["adamw"].make(params, backend="triton")
    with pytest.raises(RuntimeError, match="cannot compile the kernel adamw elementwise"):
        named.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("tried to allocate 20 MiB"),
        MemoryError(),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_kernel_that_found_no_memory_is_tried_again(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The step raises and changes nothing; the next one compiles nothing anew, loads the kernel and runs."""
    params = make_params([(3, 5)])
    optimizer = CASES["adamw"].make(params, backend="triton")
    give_grads(params, 0)
    before = picture(optimizer)

    def fail(*arguments: object) -> None:
        raise error

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(fake_triton.Utils, "load_binary", fail)
        for _ in range(2):
            with pytest.raises(type(error)):
                optimizer.step()
            assert_unchanged(optimizer, before)
    optimizer.step()
    assert fake.launched == ["adamw"]


def test_what_does_not_fit_on_the_device_is_remembered(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that needs more registers or shared memory than there are will never be loaded."""
    params = make_params([(3, 5)])
    optimizer = CASES["adamw"].make(params, backend="triton")
    give_grads(params, 0)
    one_thread = 1, 1, 64, 0, 1  # what loading gives: the last is the largest number of threads
    with monkeypatch.context() as patch:
        patch.setattr(fake_triton.Utils, "load_binary", lambda *arguments: one_thread)
        with (
            pytest.warns(UserWarning, match="OutOfResources"),
            pytest.raises(RuntimeError, match="cannot compile the kernel adamw elementwise"),
        ):
            optimizer.step()
    with pytest.raises(RuntimeError, match="cannot compile the kernel adamw elementwise"):
        optimizer.step()


@pytest.mark.parametrize("maximize", [False, True])
def test_the_factor_of_the_gradients_is_made_once(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, maximize: bool
) -> None:
    """Making it anew in each step would take memory after the step was committed."""
    made: list[Any] = []
    full = torch.full
    monkeypatch.setattr(torch, "full", lambda *a, **k: made.append(a[1]) or full(*a, **k))
    for name in ("adamw", "lamb"):
        params = make_params([(3, 5)])
        optimizer = CASES[name].make(params, backend="triton", maximize=maximize)
        made.clear()
        for step in range(4):
            give_grads(params, step)
            optimizer.step()
        assert made == [-1.0 if maximize else 1.0]
