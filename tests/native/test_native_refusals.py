"""What the native core does not take: it says so, changes nothing, and never reads what has no storage."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_buckets import random_bucket
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ingot.backends.native import NATIVE, core
from ingot.optim import NpuFusedAdamW
from ingot.step.bucket import Bucket


class Subclass(Tensor):
    """Some other tensor class."""


def fake(bucket: Bucket) -> None:
    with FakeTensorMode():
        bucket.grads[1] = torch.empty(3)


def subclass(bucket: Bucket) -> None:
    bucket.grads[1] = bucket.grads[1].as_subclass(Subclass)


def none(bucket: Bucket) -> None:
    bucket.grads[1] = None  # type: ignore[call-overload]


def meta(bucket: Bucket) -> None:
    bucket.grads[1] = torch.empty(3, device="meta")


def other_shape(bucket: Bucket) -> None:
    bucket.states[0][1] = torch.zeros(4)


def integer(bucket: Bucket) -> None:
    bucket.grads[1] = torch.zeros(3, dtype=torch.int32)


def other_type(bucket: Bucket) -> None:
    bucket.grads[1] = bucket.grads[1].half()


def wide_state(bucket: Bucket) -> None:
    bucket.states[0] = [state.double() for state in bucket.states[0]]


def expanded(bucket: Bucket) -> None:
    bucket.params[1] = torch.zeros(1).expand(3)


def overlapping(bucket: Bucket) -> None:
    bucket.states[1][1] = torch.zeros(6).as_strided((2, 3), (1, 1))
    bucket.params[1], bucket.grads[1], bucket.states[0][1] = (torch.zeros(2, 3) for _ in range(3))


def shorter(bucket: Bucket) -> None:
    bucket.grads.pop()


def tuple_of_states(bucket: Bucket) -> None:
    bucket.states[0] = tuple(bucket.states[0])  # type: ignore[call-overload]


def misaligned(bucket: Bucket) -> None:
    bucket.grads[1] = torch.frombuffer(bytearray(13), dtype=torch.float32, offset=1, count=3)


def negated(bucket: Bucket) -> None:
    bucket.params[1] = torch.zeros(3, dtype=torch.complex64).conj().imag


def sparse(bucket: Bucket) -> None:
    bucket.grads[1] = torch.ones(3).to_sparse()


REFUSED: dict[Callable[[Bucket], None], str] = {
    fake: "plain",
    subclass: "plain",
    none: "plain",
    meta: "",
    other_shape: "state 0: its shape",
    integer: "its type is not",
    other_type: "types are not those of the first",
    wide_state: "float64 mixed",
    expanded: "share memory",
    overlapping: "share memory",
    shorter: "lists of the same length",
    tuple_of_states: "lists of the same length",
    misaligned: "not aligned",
    negated: "negated",
    sparse: "",
}


@pytest.mark.parametrize("spoil", REFUSED, ids=lambda spoil: spoil.__name__)
def test_refused_with_a_reason(spoil: Callable[[Bucket], None]) -> None:
    """prepare() returns the reason and leaves the tensors alone."""
    bucket = random_bucket("adamw", [(5,), (3,), (4,)])
    before = bucket.params[0].clone(), bucket.grads[0].clone()
    spoil(bucket)
    reason = NATIVE.prepare(bucket)
    assert isinstance(reason, str) and REFUSED[spoil] in reason and reason
    assert bucket.prepared is None
    assert torch.equal(bucket.params[0], before[0]) and torch.equal(bucket.grads[0], before[1])


OWN_PARTS = [
    *(("adamw", part) for part in ("scalars", "advance", "direction")),
    *(("lamb", part) for part in ("scalars", "advance", "direction", "finish")),
    ("adamp", "score"),
]


@pytest.mark.parametrize(("name", "part"), OWN_PARTS)
def test_a_spec_from_elsewhere_is_not_mistaken(name: str, part: str) -> None:
    """A declaration with a known name but a function of its own was not compiled in."""
    bucket = random_bucket(name, [(3,)])
    spec = bucket.variant.spec
    original = getattr(spec, part)

    @functools.wraps(original)  # with the module and the name of the original
    def own(*operands: Any, **flags: bool) -> Any:
        return original(*operands, **flags)

    bucket.variant = dataclasses.replace(spec, **{part: own}).variant({})
    assert NATIVE.prepare(bucket) == f"{name} was not compiled in"
    bucket.variant = dataclasses.replace(spec, clips=lambda group: ()).variant({})
    assert NATIVE.prepare(bucket) is None, "clipping is not compiled"


def test_other_data_around_compiled_functions_is_not_mistaken() -> None:
    """The core knows its states by their order, and computes the sums it was compiled for."""
    moments = NpuFusedAdamW.spec.states
    for name, data in {
        "adamw": {"states": {key: moments[key] for key in reversed(moments)}},
        "sgd": {"looks_back": True},
        "lamb": {"sums": ("pp", "gg", "uu")},
        "adamp": {"rows": False},
    }.items():
        bucket = random_bucket(name, [(3,)])
        changed = dataclasses.replace(bucket.variant.spec, **data)
        bucket.variant = changed.variant({})
        assert NATIVE.prepare(bucket) == f"{name} was not compiled in"


def test_wrong_arguments_raise() -> None:
    """The module checks what it is given; a mistake in Python cannot crash the process."""
    bucket = random_bucket("adamw", [(3,)])
    assert NATIVE.prepare(bucket) is None
    with pytest.raises(ValueError, match="8 scalars"):
        core.run(bucket.prepared, (1.0, 2.0), 1.0)
    with pytest.raises(ValueError, match="not a two-pass"):
        core.first(bucket.prepared, tuple(bucket.scalars), 1.0, torch.zeros(1))
    with pytest.raises(ValueError):
        core.run(object(), tuple(bucket.scalars), 1.0)
    lamb = random_bucket("lamb", [(3,)])
    assert NATIVE.prepare(lamb) is None
    with pytest.raises(ValueError, match="2 consecutive"):
        core.first(lamb.prepared, tuple(lamb.scalars), 1.0, torch.zeros(7, dtype=torch.float64))
    with pytest.raises(ValueError, match="float64"):
        core.first(lamb.prepared, tuple(lamb.scalars), 1.0, torch.zeros(2, 1))


def test_keys_for_some_operands_only() -> None:
    """Every operand that is rounded needs a key per tensor."""
    bucket = random_bucket("adamw", [(3,)])
    number, _ = core.variants()["adamw"]
    tensors = bucket.params, bucket.grads, bucket.states
    assert (
        core.prepare(number, *tensors, None, [[1], [], []], 0, False)
        == "not one key per tensor and operand"
    )


def test_facts_differ_when_a_plan_must() -> None:
    """Anything about a tensor but its values and its address; None for tensors that must be looked at each time."""
    base = torch.zeros(4, 6)
    known = core.facts([[base]], [torch.ones(4, 6)])
    assert known is not None and known == core.facts([[torch.ones(4, 6)]], [torch.zeros(4, 6)])
    for other in (
        base.double(),
        base.reshape(6, 4),
        torch.zeros(6, 4).t(),
        torch.zeros(8, 6)[::2],
        base[0],
    ):
        found = core.facts([[other]], [torch.ones(4, 6)])
        assert found is not None and found[0] != known[0]
    for strange in (torch.zeros(2, dtype=torch.complex64), torch.zeros(2).to_sparse(), None, 3):
        assert core.facts([[strange]], []) is None
    assert core.facts([], [torch.zeros(2, dtype=torch.complex64).conj().imag]) is None


def test_facts_tell_overlapping_memory() -> None:
    """What is written must be alone; what is only read may be shared."""
    base = torch.zeros(10)
    for written, read, overlap in [
        ([base[:5], base[5:]], [], False),
        ([base[:6], base[5:]], [], True),
        ([base[:5]], [base[4:]], True),
        ([base[:5]], [base[5:], base[6:]], False),
        ([base[5:5], base], [], False),
    ]:
        found = core.facts([written], read)
        assert found is not None and found[1] is overlap
