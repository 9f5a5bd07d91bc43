"""What the tests of states in host memory share: the same optimizer offloaded on the NPU and as usual on the CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from cases import CASES, Case, Options
from ingot.optimizer import FusedOptimizer
from ingot.storage.offload import Offload
from ingot.storage.transfer import HOST
from training import assert_same, give_grads, make_params, params_of, tensors_of

ADAMW = CASES["adamw"]
# Sizes below and above those that are kept as 8-bit codes, none and one element, no and several dimensions.
SHAPES = [(7,), (), (0,), (4, 3), (70, 65), (2, 3, 2, 2), (33, 31)]


def to_npu(params: Sequence[Tensor]) -> list[Tensor]:
    return [Parameter(param.detach().npu()) for param in params]


def make_pair(
    case: Case, options: Options, dtype: torch.dtype = torch.float32, **more: Any
) -> tuple[FusedOptimizer, FusedOptimizer]:
    """The same optimizer over the same parameters: on the NPU with its states on the host, and on the CPU."""
    params = make_params(SHAPES, dtype=dtype)
    away = case.make(to_npu(params), **options, **more, offload="cpu")
    return away, case.make(params, **options, **more)


def give_both(away: FusedOptimizer, near: FusedOptimizer, number: int) -> None:
    """The same gradients for both, by backward: hooks see those of the NPU."""
    give_grads(params_of(near), number)
    for ours, theirs in zip(params_of(away), params_of(near), strict=True):
        ours.grad = None
        assert theirs.grad is not None
        ours.backward(theirs.grad.to(ours.device))


def step(away: FusedOptimizer, near: FusedOptimizer, number: int) -> None:
    """One step of both, with the same gradients."""
    give_both(away, near, number)
    away.step()
    near.step()


def assert_same_bits(away: FusedOptimizer, near: FusedOptimizer) -> None:
    """Parameters on the NPU, states on the host, and not a bit differs from the optimizer on the CPU."""
    ours = tensors_of(away)
    for name, tensor in ours.items():
        assert tensor.device.type == ("npu" if name.startswith("param ") else "cpu"), name
    assert_same({name: tensor.cpu() for name, tensor in ours.items()}, tensors_of(near))


class LateTransfer:
    """Copies that happen as late and as much out of order as a real device could make them happen.

    A buffer holds NaN from the moment its copy is asked for until somebody waits for it. A copy to the host reads its
    source when it happens. Waiting for one copy makes another happen first that was asked for later.
    """

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Tensor, Tensor]] = deque()
        self.log: list[str] = []
        self.number = 0

    def buffer(self, like: Tensor) -> Tensor:
        return torch.full_like(like, torch.nan, device=HOST)

    def fetch(self, source: Tensor, target: Tensor) -> int:
        self.log.append("fetch")
        return self._ask(source, target)

    def send(self, source: Tensor, target: Tensor) -> None:
        self.log.append("send")
        self._ask(source.clone(), target.detach())

    def is_done(self, ticket: int) -> bool:
        return all(number != ticket for number, _, _ in self.waiting)

    def wait(self, ticket: int) -> None:
        self.log.append("wait")
        if self.is_done(ticket):
            return
        later = [each for each in self.waiting if each[0] > ticket][::-1]
        chosen = next(each for each in self.waiting if each[0] == ticket)
        mine = {chosen[1].data_ptr(), chosen[2].data_ptr()}
        others = [e for e in later if not mine & {e[1].data_ptr(), e[2].data_ptr()}]
        earlier = [e for e in self.waiting if e[0] < ticket and e[2].data_ptr() in mine]
        for each in [*others[:1], *earlier, chosen]:
            self._happen(each)

    def settle(self, device: torch.device) -> None:
        self.log.append("settle")
        for each in [*self.waiting]:
            self._happen(each)

    def _ask(self, source: Tensor, target: Tensor) -> int:
        self.number += 1
        self.waiting.append((self.number, source, target))
        if target.device.type == "cpu":
            target.fill_(torch.nan)
        return self.number

    def _happen(self, each: tuple[int, Tensor, Tensor]) -> None:
        self.waiting.remove(next(e for e in self.waiting if e[0] == each[0]))
        with torch.no_grad():
            each[2].copy_(each[1])


def late(optimizer: FusedOptimizer) -> LateTransfer:
    """Give an optimizer a device whose copies come late and out of order."""
    offload = optimizer._offload
    assert isinstance(offload, Offload)
    offload.transfer = LateTransfer()
    return offload.transfer
