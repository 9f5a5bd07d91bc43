"""Makes first steps under memory limits, of every optimizer on every backend: each is right or changes nothing.

Run as a program by test_failed_step_memory.py, because a limit holds for the whole process.
"""

from __future__ import annotations

import resource
import sys

import torch

from cases import BACKENDS, CASES
from training import picture, tensors_of, with_state

UNIT = 1 << 18
SHAPES = [(1 << 17,), (350, 350), (40, 30), (5,)]  # two tensors of about half a megabyte each
# How many units a step may take beside what is there.
ROOM = [0, 2, 4, 6, 10, 14, 20, 28, 40, 60, 120, 160]


def used() -> int:
    """Bytes of address space, which is what the limit counts."""
    with open("/proc/self/statm") as statistics:
        return int(statistics.read().split()[0]) * resource.getpagesize()


def make(case, backend, **options):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).requires_grad_() for s in SHAPES]
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)
    return with_state(case, params, backend=backend, **options)


def step_within(optimizer, room: int) -> bool:
    """Whether a step succeeds that may take ``room`` units of memory more; a failure must change nothing."""
    before = picture(optimizer)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used() + room * UNIT, hard))
    try:
        optimizer.step()
        return True
    except (MemoryError, RuntimeError):
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    after = picture(optimizer)
    for name, value in before["tensors"].items():
        assert torch.equal(after["tensors"][name], value), f"{name} changed"
    assert after["state keys"] == before["state keys"], "states were left behind"
    return False


def main() -> None:
    torch.set_num_threads(1)
    for stem, case in CASES.items():
        for backend in BACKENDS:
            for options in ({}, {"state_dtype": torch.bfloat16, "rounding": "stochastic"}):
                expected = make(case, backend, **options)
                expected.step()
                wanted = tensors_of(expected)
                outcomes = []
                for room in ROOM:
                    optimizer = make(case, backend, **options)
                    outcomes.append(step_within(optimizer, room))
                    if not outcomes[-1]:
                        optimizer.step()  # with room enough: as if nothing had happened
                    for name, value in tensors_of(optimizer).items():
                        assert torch.equal(value, wanted[name]), (stem, backend, room, name)
                print(stem, backend, "".join("-+"[each] for each in outcomes), flush=True)
                assert any(outcomes), "no step succeeded: the limits are too low to show anything"
                assert not all(outcomes), "no step failed: the limits are too high to show anything"


if __name__ == "__main__":
    sys.exit(main())
