"""All who take part in the benchmark do the same work."""

from __future__ import annotations

import pytest
import torch

from bench_rows import make_show
from ingot.cli.bench import parts, peers
from ingot.cli.bench.measure import Workload
from ingot.cli.bench.shapes import tiny
from ingot.optim import NpuFusedAdamW


def final_params(contestant: peers.Contestant) -> list[torch.Tensor]:
    """The parameters after three steps; skips the test if the package is not installed."""
    workload = Workload(list(tiny()))
    # Far above what the packages add to the second moment under the root (1e-15), too small to be clipped.
    workload.keep_grads(scale=10.0)
    workload.refill()
    show = make_show()
    entry = parts.enter(contestant, workload, show)
    if entry is None:
        pytest.skip(f"{contestant.name}: {show.notes[contestant.name]}")
    entry.step()
    entry.step()
    return [param.detach() for param in workload.params]


PEERS = [
    (name, peer)
    for name in peers.TITLES
    for peer in peers.peers(name)
    if peer.package != "deepspeed"  # compiles for a minute
]


@pytest.mark.parametrize(
    ("optimizer", "peer"), PEERS, ids=[f"{name}-{peer.name}" for name, peer in PEERS]
)
def test_peers_do_the_same_work(optimizer: str, peer: peers.Contestant) -> None:
    theirs = final_params(peer)
    mine = final_params(peers.ours(optimizer, None))
    start = [param.detach() for param in Workload(list(tiny())).params]
    moved = max((a - b).abs().max().item() for a, b in zip(mine, start, strict=True))
    assert moved > 1e-6
    # A hundredth of the way moved: eps and the norms' guards differ between packages, algorithms do not.
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.01 * moved)


def test_a_missing_package_is_named() -> None:
    show = make_show()
    lost = peers.Contestant("lost", "lost", peers.from_module("no_such_package", "Lamb"))
    assert parts.enter(lost, Workload([(2,)]), show) is None
    assert show.notes == {"lost": "No module named 'no_such_package'"}


def test_one_scaled_step_does_what_three_calls_do() -> None:
    results = []
    for three_calls in (False, True):
        workload = Workload(list(tiny()))
        workload.keep_grads(
            scale=1000 * parts.SCALE
        )  # a norm of about 6: clipping changes the step
        workload.refill()
        options = peers.OPTIONS["adamw"] | {
            "eps": 1.0
        }  # with a large eps the size of gradients shows

        def clip(params: list[torch.nn.Parameter] = workload.params) -> None:
            torch.nn.utils.clip_grad_norm_(params, 1.0)

        if three_calls:
            step = parts.scaled(torch.optim.AdamW(workload.params, **options, fused=True), clip)
        else:
            step = parts.scaled(NpuFusedAdamW(workload.params, **options, max_grad_norm=1.0))
        before = [param.detach().clone() for param in workload.params]
        step()
        results.append([p.detach() - b for p, b in zip(workload.params, before, strict=True)])
    assert max(change.abs().max().item() for change in results[0]) > 1e-5
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-8)
