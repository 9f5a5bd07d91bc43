"""Steps that all processes take: counting where they meet, and errors that must arise in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from layouts import Layout
from torch import Tensor

from ingot.optimizer import FusedOptimizer
from training import give_grads, make_params


@contextmanager
def counted() -> Iterator[list[tuple[Any, int]]]:
    """Lists every collective of any kind: its process group and the number of elements."""
    calls: list[tuple[Any, int]] = []
    original = dist.all_reduce

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        calls.append((kwargs["group"], tensor.numel()))
        return original(tensor, *args, **kwargs)

    names = ["all_gather", "all_gather_into_tensor", "broadcast", "reduce", "barrier", "all_to_all"]
    names += [
        "reduce_scatter_tensor",
        "all_gather_object",
        "broadcast_object_list",
        "reduce_scatter",
    ]
    from torch.distributed.tensor.debug import CommDebugMode

    with (
        CommDebugMode() as functional,
        mock.patch.object(dist, "all_reduce", all_reduce),
        mock.patch.multiple(dist, **dict.fromkeys(names, mock.Mock(side_effect=AssertionError))),
    ):
        yield calls
    # What goes through DTensor operators is counted by torch; the calls above are seen by both.
    assert functional.get_total_counts() in (0, len(calls)), functional.get_comm_counts()


def stepped(
    kind: type[FusedOptimizer], layout: Layout, count: int, **options: Any
) -> tuple[FusedOptimizer, list[Tensor]]:
    """An optimizer of ``count`` split parameters after its first step, with gradients for the next."""
    wholes = make_params([(5, 4)] * count)
    params = layout.params(wholes)
    optimizer = kind(params, **{"lr": 0.01, **options})
    give_grads(wholes, 0)
    for i, (param, whole) in enumerate(zip(params, wholes, strict=True)):
        assert whole.grad is not None
        param.grad = layout.lay_out(i, whole.grad)
    optimizer.step()
    return optimizer, params


def raises_everywhere(step: Callable[[], Any], words: str) -> None:
    """The same error on all processes, which then are still in step with each other."""
    try:
        step()
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error with {words!r}")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
