"""What the native core does not take: it says so, changes nothing, and never reads what has no storage."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from native_buckets import make_bucket, random_bucket
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ingot.backends.native import NATIVE, core
from ingot.optim import NpuFusedAdamW, NpuFusedSGD
from ingot.step.plan import Bucket


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


def tied(bucket: Bucket) -> None:
    bucket.params[2] = torch.cat([bucket.params[1], torch.zeros(1)])
    bucket.params[1] = bucket.params[2][1:]


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
    tied: "some parameters share memory",
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
    assert bucket.table is None
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
        core.run(bucket.table, (1.0, 2.0), 1.0)
    with pytest.raises(ValueError, match="not a two-pass"):
        core.first(bucket.table, tuple(bucket.scalars), 1.0, torch.zeros(1))
    with pytest.raises(ValueError):
        core.run(object(), tuple(bucket.scalars), 1.0)
    lamb = random_bucket("lamb", [(3,)])
    assert NATIVE.prepare(lamb) is None
    with pytest.raises(ValueError, match="2 consecutive"):
        core.first(lamb.table, tuple(lamb.scalars), 1.0, torch.zeros(7, dtype=torch.float64))
    with pytest.raises(ValueError, match="float64"):
        core.first(lamb.table, tuple(lamb.scalars), 1.0, torch.zeros(2, 1))


def test_negated_views() -> None:
    """A lazily negated gradient, as the backward of complex numbers leaves it, is never read with the wrong sign."""
    grad = torch.randn(10)
    bucket = make_bucket("sgd", [torch.zeros(10)], [torch._neg_view(grad)])
    assert NATIVE.prepare(bucket) == "tensor 0, grad: it is a lazily negated view"
    param = torch.zeros(10, requires_grad=True)
    optimizer = NpuFusedSGD([param], lr=0.1)
    param.grad = torch._neg_view(grad)
    optimizer.step()
    assert torch.allclose(param.detach(), 0.1 * grad)


def test_negated_parameters_and_states() -> None:
    """What is behind a negated view has the other sign; such tensors are updated by another backend, in place."""
    for backend in (None, "reference"):
        imaginary = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
        param, plain = imaginary.requires_grad_(), torch.ones(3, requires_grad=True)
        optimizer = NpuFusedSGD([param, plain], lr=0.1, momentum=0.9, backend=backend)
        for step in range(4):
            param.grad, plain.grad = torch.ones(3), torch.ones(3)
            if step == 2:
                buffer = optimizer.state[plain]["momentum_buffer"]
                optimizer.state[plain]["momentum_buffer"] = torch._neg_view(-buffer)
            optimizer.step()
        moved = 0.1 * (1 + 1.9 + 2.71 + 3.439)
        torch.testing.assert_close(param.detach().resolve_neg(), torch.full((3,), -1 - moved))
        torch.testing.assert_close(plain.detach(), torch.full((3,), 1 - moved))


def test_keys_for_some_operands_only() -> None:
    """Every operand that is rounded needs a key per tensor."""
    bucket = random_bucket("adamw", [(3,)])
    number, _ = core.variants()["adamw"]
    tensors = bucket.params, bucket.grads, bucket.states
    assert (
        core.prepare(number, *tensors, None, [[1], [], []], 0)
        == "not one key per tensor and operand"
    )


def test_gathering_stops_where_a_plan_cannot_go_on() -> None:
    """None, not an error and not a guess: the step is then planned anew."""
    params = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(2)
    state = torch.zeros(2)
    slots = [{"step": 10**6, "exp_avg": state}, {"step": int("1000000"), "exp_avg": state}]
    step, grads, states = core.gather(params, slots, ("exp_avg",), True)
    assert step == 10**6 and len(states) == 1
    assert all(grad is param.grad for grad, param in zip(grads, params, strict=True))
    assert all(each is state for each in states[0])

    assert core.gather(params, slots[:1], ("exp_avg",), True) is None
    assert core.gather(params, slots, ("exp_avg", "absent"), True) is None
    for other in (7, torch.tensor(10**6), None):
        changed = [slots[0], {**slots[1], "step": other}]
        assert core.gather(params, changed, ("exp_avg",), True) is None
        assert core.gather(params, changed, ("exp_avg",), False) is not None
    params[1].grad = None
    assert core.gather(params, slots, ("exp_avg",), True) is None
    with pytest.raises(AttributeError, match="grad"):
        core.gather([1, 2], slots, ("exp_avg",), True)


def test_identical_lists() -> None:
    """The very same objects in the same order; equal ones are not enough."""
    one, two = torch.zeros(1), torch.zeros(1)
    assert core.identical([one, two], [one, two])
    assert not core.identical([one, two], [two, one])
    assert not core.identical([one], [one, two])
    assert not core.identical([one], [torch.zeros(1)])
