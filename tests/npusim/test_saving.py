"""Copies, files and loaders: what a training keeps and feeds."""

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from npusim_nets import is_on_npu, make_net
from torch.utils.data import DataLoader, TensorDataset


def test_deepcopy_and_pickle() -> None:
    net = make_net().npu()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other.state_dict(), net.state_dict(), rtol=0, atol=0)
        next(other.parameters()).data.zero_()
        assert next(net.parameters()).abs().sum().item() > 0
    shared = torch.zeros(4, device="npu")
    first, second = copy.deepcopy([shared, shared[:2]])
    first.add_(1)
    assert second.tolist() == [1, 1]  # they still share their memory


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("saved", "location", "expected"),
    [
        ("npu", None, "npu"),
        ("npu", "cpu", "cpu"),
        ("npu", "npu:0", "npu"),
        ("cpu", "npu", "npu"),
        ("cpu", {"cpu": "npu:0"}, "npu"),
        ("npu", lambda storage, place: storage, "cpu"),
    ],
)
def test_save_and_load(saved: str, location: Any, expected: str, weights_only: bool) -> None:
    net = make_net().to(saved)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location=location, weights_only=weights_only)
    assert {t.device.type for t in loaded.values()} == {expected}
    torch.testing.assert_close(
        {k: t.cpu() for k, t in loaded.items()}, {k: t.cpu() for k, t in net.state_dict().items()}
    )
    make_net().npu().load_state_dict(loaded)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    loader = DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True)
    batches = [(x.to("npu", non_blocking=True), y.npu(non_blocking=True)) for x, y in loader]
    assert torch.cat([x for x, _ in batches]).cpu().equal(data.tensors[0])
    assert torch.cat([y for _, y in batches]).cpu().equal(data.tensors[1])


def test_checkpoint_file_of_a_training(tmp_path: Path) -> None:
    net = make_net().npu()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(2, 1, 4, 4, device="npu")).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")["state"]
    assert is_on_npu(*(entry["momentum_buffer"] for entry in state.values()))
    for i, entry in state.items():
        assert entry["momentum_buffer"].equal(list(net.parameters())[i].grad)
