"""torch.npu beyond tensors: devices, streams, events, memory statistics, random numbers, types."""

import gc
import os
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def npu() -> Any:
    gc.collect()
    torch.npu.reset_peak_memory_stats()
    torch.npu.reset_accumulated_memory_stats()
    return torch.npu


def test_memory_is_what_living_tensors_hold(npu: Any) -> None:
    before = npu.memory_allocated()
    tensor = torch.zeros(1000, device="npu")
    assert npu.memory_allocated() - before == 4000
    view, alias, bits = tensor[10:20], tensor.detach(), tensor.view(torch.int32)
    assert npu.memory_allocated() - before == 4000 and bits.data_ptr() == tensor.data_ptr()
    del tensor, view, bits
    assert npu.memory_allocated() - before == 4000  # the alias holds all of it
    doubled = alias * 2
    assert npu.memory_allocated() - before == 8000
    del alias, doubled
    assert npu.memory_allocated() == before
    assert npu.max_memory_allocated() - before == 8000
    npu.reset_peak_memory_stats()
    assert npu.max_memory_allocated() == npu.memory_allocated() == before


def test_memory_of_a_training_step(npu: Any) -> None:
    before = npu.memory_allocated()
    net = nn.Linear(64, 32).npu()
    size = (64 * 32 + 32) * 4
    assert npu.memory_allocated() - before == size
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    net(torch.ones(16, 64, device="npu")).sum().backward()
    assert npu.memory_allocated() - before == 2 * size
    optimizer.step()
    assert npu.memory_allocated() - before == 4 * size
    del net, optimizer
    gc.collect()
    assert npu.memory_allocated() == before


def test_memory_statistics_agree(npu: Any) -> None:
    held = [torch.zeros(n, device="npu") for n in (10, 20, 30)]
    del held[0]
    stats = npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == npu.memory_allocated()
    assert stats["allocated_bytes.all.peak"] == npu.max_memory_allocated()
    assert stats["allocation.all.allocated"] - stats["allocation.all.freed"] == 2
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == 200
    assert npu.memory_reserved() == npu.memory_cached() == npu.memory_allocated()
    assert npu.max_memory_reserved() == npu.max_memory_allocated()
    free, whole = npu.mem_get_info()
    assert whole - free == npu.memory_allocated()
    assert whole == npu.get_device_properties().total_memory
    assert f"current {npu.memory_allocated()} " in npu.memory_summary()
    npu.reset_accumulated_memory_stats()
    assert npu.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_memory_is_counted_in_threads(npu: Any) -> None:
    before = npu.memory_allocated()

    def work() -> None:
        for _ in range(50):
            torch.zeros(100, device="npu").add_(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert npu.memory_allocated() == before
    stats = npu.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] >= 200


def test_an_emptied_storage(npu: Any) -> None:
    before = npu.memory_allocated()
    tensor = torch.ones(8, device="npu")
    storage = tensor.untyped_storage()
    assert storage.resize_(0) is storage and storage.size() == storage.nbytes() == 0
    assert npu.memory_allocated() == before
    storage.resize_(32)
    assert tensor.untyped_storage().size() == 32 and npu.memory_allocated() - before == 32
    assert tensor.isnan().all()  # whoever reads what was given back will notice
    with pytest.raises(NotImplementedError, match="beyond the 32 bytes"):
        storage.resize_(64)
    host = torch.UntypedStorage(4)
    assert host.resize_(16).nbytes() == 16  # others are left alone


def test_streams(npu: Any) -> None:
    first, second = npu.Stream(), npu.Stream(device="npu:0", priority=-1)
    assert first != second and first == first and len({first, second, npu.default_stream()}) == 3
    assert npu.current_stream() == npu.default_stream()
    with npu.stream(first):
        assert npu.current_stream() == first
        with npu.stream(None), npu.stream(second):
            assert npu.current_stream() == second
            seen = []
            thread = threading.Thread(target=lambda: seen.append(npu.current_stream()))
            thread.start()
            thread.join()
            assert seen == [npu.default_stream()]
        assert npu.current_stream() == first
        product = torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")
    assert npu.current_stream() == npu.default_stream()
    npu.set_stream(second)
    assert npu.current_stream() == second
    npu.set_stream(npu.default_stream())
    product.record_stream(first)
    first.wait_stream(second)
    second.wait_event(first.record_event())
    first.synchronize()
    torch.accelerator.synchronize()
    assert first.query() and first.device == torch.device("npu", 0) and "simulated" in repr(first)


def test_events(npu: Any) -> None:
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="two events that were recorded"):
        start.elapsed_time(end)
    start.record()
    clock = time.perf_counter()
    while time.perf_counter() - clock < 0.002:
        pass
    end.record(npu.current_stream())
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 2.0
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    end.wait(npu.Stream())
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        npu.Event().elapsed_time(end)


def test_properties(npu: Any) -> None:
    properties = npu.get_device_properties("npu:0")
    assert "simulated" in properties.name == npu.get_device_name()
    assert properties.total_memory > 2**28 and properties.cube_core_num == os.cpu_count()
    assert properties.vector_core_num > 0 and properties.L2_cache_size >= 0
    assert properties.major is None and properties.multi_processor_count is None
    assert npu.get_device_capability() is None and npu.utilization() == 0
    assert npu.utils.get_soc_version() == npu.get_soc_version() == 220
    assert npu.utils.is_support_inf_nan()
    assert npu.utils.npu_check_overflow(torch.tensor([1.0, torch.inf]).npu())
    assert not npu.utils.npu_check_overflow(torch.ones(2).half().npu())
    assert npu.utils.npu_check_overflow(float("nan")) and not npu.utils.npu_check_overflow(1.0)


def test_more_than_one_index(npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert npu.device_count() == 1
    with pytest.raises(RuntimeError, match="INGOT_NPUSIM_DEVICES=3 in the environment makes"):
        npu.set_device(2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun sets it
    assert npu.device_count() == 2
    npu.set_device(1)
    tensor = torch.ones(2, device="npu:1") + torch.ones(2).to("npu:0")
    # One device behind all of them, and what says so agrees with tensors.
    assert tensor.device.index == npu.current_device() == tensor.get_device() == 0
    monkeypatch.setenv("INGOT_NPUSIM_DEVICES", "4")
    assert npu.device_count() == 4 and len(npu.get_rng_state_all()) == 4
    with npu.device(3), npu.device_of(tensor):
        assert npu.memory_allocated(3) == npu.memory_allocated()
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("INGOT_NPUSIM_DEVICES", wrong)
        with pytest.raises(ValueError, match=f"must be a positive whole number, not '{wrong}'"):
            npu.device_count()


def test_random_namespace(npu: Any) -> None:
    npu.random.manual_seed_all(3)
    states = npu.random.get_rng_state_all()
    first = torch.randn(3, device="npu")
    npu.random.set_rng_state_all(states)
    assert torch.randn(3, device="npu").equal(first)
    npu.random.set_rng_state(states[0], "npu:0")
    assert torch.randn(3, device="npu").equal(first) and npu.random.initial_seed() == 3
    assert npu.random.get_rng_state is npu.get_rng_state


TYPES = {
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
}


@pytest.mark.parametrize(("name", "dtype"), TYPES.items(), ids=TYPES)
def test_typed_tensors(npu: Any, name: str, dtype: torch.dtype) -> None:
    kind = getattr(npu, name)
    made = kind([1, 0])
    assert made.dtype == dtype and made.device.type == "npu" and made.tolist() == [1, 0]
    assert kind(2, 3).shape == kind(torch.Size([2, 3])).shape == (2, 3) and kind().shape == (0,)
    assert isinstance(made, kind) and not isinstance(made.cpu(), kind)
    other = npu.LongTensor if kind is not npu.LongTensor else npu.FloatTensor
    assert not isinstance(made, other)
    assert made.type() == f"torch.npu.{name}"
    for wish in (kind, f"torch.npu.{name}"):
        moved = torch.tensor([1.0, 0.0]).type(wish)
        assert isinstance(moved, kind) and moved.tolist() == [1, 0]
    assert torch.ones(1).type("torch.DoubleTensor").dtype == torch.float64  # others as before
    with pytest.raises(ValueError, match=r"torch\.npu\.Nonsense"):
        made.type("torch.npu.Nonsense")


def test_autocast_switches(npu: Any) -> None:
    assert not npu.is_autocast_enabled()
    with npu.amp.autocast(dtype=torch.bfloat16):
        assert npu.is_autocast_enabled() and npu.get_autocast_dtype() == torch.bfloat16
    assert npu.is_jit_compile_false() and not npu.is_current_stream_capturing()
    npu.set_option({"ACL_OP_COMPILER_CACHE_MODE": "disable"})
    with pytest.raises(TypeError, match="option must be a dict"):
        npu.set_option("fast")


def test_modules_by_both_names() -> None:
    import torch.npu.amp
    import torch.npu.random
    import torch.npu.utils
    import torch_npu
    from torch.npu.amp.grad_scaler import GradScaler
    from torch_npu.npu.amp.autocast_mode import autocast

    assert torch.npu.amp is torch_npu.npu.amp and torch.npu.amp.GradScaler is GradScaler
    assert torch.npu.amp.autocast is autocast
    with pytest.raises(
        ModuleNotFoundError, match=r"is simulated by ingot.npusim and has no 'nothing'"
    ):
        import torch.npu.nothing
