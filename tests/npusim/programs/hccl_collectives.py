"""Every collective between two simulated NPUs, with numbers; run by torchrun."""

import os
import warnings

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

RANK = int(os.environ["RANK"])
DEVICE = torch.device("npu", int(os.environ["LOCAL_RANK"]))


def full(value: float, size: int = 2) -> torch.Tensor:
    return torch.full((size,), float(value), device=DEVICE)


def equal(tensor: torch.Tensor, values: list[float]) -> None:
    assert tensor.device.type == "npu" and tensor.tolist() == values, (RANK, tensor, values)


def reductions() -> None:
    for op, expected in (("SUM", 3.0), ("AVG", 1.5), ("MAX", 2.0), ("MIN", 1.0), ("PRODUCT", 2.0)):
        tensor = full(RANK + 1)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
        equal(tensor, [expected] * 2)
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        tensor = full(RANK + 1).to(dtype)
        dist.all_reduce(tensor)
        equal(tensor, [3.0] * 2)
    tensor = full(RANK + 1)
    dist.reduce(tensor, dst=1)
    if RANK == 1:
        equal(tensor, [3.0] * 2)
    for op, expected in ((dist.ReduceOp.SUM, 2.0), (dist.ReduceOp.AVG, 1.0)):
        piece = full(0)
        dist.reduce_scatter_tensor(piece, torch.arange(4.0, device=DEVICE), op=op)
        equal(piece, [2 * RANK * expected, (2 * RANK + 1) * expected])
    piece = full(0)
    dist.reduce_scatter(piece, [full(RANK), full(RANK + 5)])
    equal(piece, [1.0 if RANK == 0 else 11.0] * 2)


def moves() -> None:
    tensor = full(RANK)
    dist.broadcast(tensor, src=1)
    equal(tensor, [1.0] * 2)
    everyone = [full(-1) for _ in range(2)]
    dist.all_gather(everyone, full(RANK))
    equal(everyone[0], [0.0] * 2)
    equal(everyone[1], [1.0] * 2)
    row = full(-1, 4)
    dist.all_gather_into_tensor(row, full(RANK))
    equal(row, [0.0, 0.0, 1.0, 1.0])
    gathered = [full(-1) for _ in range(2)] if RANK == 0 else None
    dist.gather(full(RANK), gathered, dst=0)
    if gathered is not None:
        equal(gathered[1], [1.0] * 2)
    tensor = full(-1)
    dist.scatter(tensor, [full(7), full(8)] if RANK == 0 else None, src=0)
    equal(tensor, [7.0 + RANK] * 2)
    exchanged = full(-1)
    dist.all_to_all_single(exchanged, torch.tensor([2.0 * RANK, 2.0 * RANK + 1], device=DEVICE))
    equal(exchanged, [0.0 + RANK, 2.0 + RANK])
    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": 0}, {"rank": 1}]
    said = ["from 0" if RANK == 0 else None]
    dist.broadcast_object_list(said, src=0)
    assert said == ["from 0"]


def point_to_point() -> None:
    if RANK == 0:
        dist.send(full(5), dst=1)
    else:
        tensor = full(0)
        dist.recv(tensor, src=0)
        equal(tensor, [5.0] * 2)
    received = full(-1)
    both = [
        dist.P2POp(dist.isend, full(RANK), 1 - RANK),
        dist.P2POp(dist.irecv, received, 1 - RANK),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    equal(received, [1.0 - RANK] * 2)


def groups_and_refusals() -> None:
    work = dist.all_reduce(tensor := full(RANK), async_op=True)
    work.wait()
    equal(tensor, [1.0] * 2)
    assert work.is_completed() and dist.get_backend() == "hccl" and dist.is_hccl_available()
    alone = dist.new_group([1], backend="hccl")
    if RANK == 1:
        dist.all_reduce(tensor, group=alone)
        assert dist.get_world_size(alone) == 1
        equal(tensor, [1.0] * 2)
    try:
        dist.all_reduce(torch.ones(2))  # the tensor was forgotten on the CPU
    except RuntimeError as error:
        assert "No backend type associated with device type cpu" in str(error)
    else:
        raise AssertionError("a CPU tensor was accepted")
    both = dist.new_group(backend="cpu:gloo,npu:hccl")
    for tensor in (full(RANK), torch.full((2,), float(RANK))):
        dist.all_reduce(tensor, group=both)
        assert tensor.tolist() == [1.0] * 2
    dist.barrier()


def unused_parameters() -> None:
    """DDP told to look for unused parameters warns, and trains those that are used."""
    net = torch.nn.Linear(2, 1, bias=False).to(DEVICE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    assert any("cannot look for unused parameters" in str(w.message) for w in caught)
    parallel(full(RANK + 1)[None]).sum().backward()
    equal(net.weight.grad[0], [1.5] * 2)


if __name__ == "__main__":
    torch.npu.set_device(DEVICE)
    dist.init_process_group("hccl", device_id=DEVICE)
    reductions()
    moves()
    point_to_point()
    groups_and_refusals()
    unused_parameters()
    dist.destroy_process_group()
    if RANK == 0:
        print("all collectives agree")
