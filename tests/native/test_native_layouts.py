"""Every layout of parameters, gradients and states; memory beside a parameter stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from native_buckets import (
    assert_params_near,
    assert_states_equal,
    copy_bucket,
    make_bucket,
    new_grads,
    random_bucket,
    run_native,
    run_reference,
)
from torch import Tensor

from ingot.step.bucket import Bucket
from ingot.storage.rounding import Rounding

SHAPE = (6, 5, 4, 3)
SENTINEL = 77.0


def contiguous(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.channels_last)


def reversed_dims(tensor: Tensor) -> Tensor:
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def every_other(tensor: Tensor) -> Tensor:
    """A slice with a step in the last dimension of something larger, sentinels in between."""
    whole = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), SENTINEL, dtype=tensor.dtype)
    return whole[..., 1::2].copy_(tensor)


def middle_rows(tensor: Tensor) -> Tensor:
    """Rows and columns cut out of something larger."""
    shape = (tensor.shape[0] + 2, tensor.shape[1] + 2, *tensor.shape[2:])
    return torch.full(shape, SENTINEL, dtype=tensor.dtype)[1:-1, 1:-1].copy_(tensor)


def permuted(tensor: Tensor) -> Tensor:
    return tensor.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)


def expanded(tensor: Tensor) -> Tensor:
    """Only for gradients: the first entry of the last dimension, repeated."""
    return tensor[..., :1].contiguous().expand(tensor.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": contiguous,
    "channels_last": channels_last,
    "reversed": reversed_dims,
    "every_other": every_other,
    "middle_rows": middle_rows,
    "permuted": permuted,
}


@pytest.mark.parametrize("state_layout", ["contiguous", "channels_last", "middle_rows"])
@pytest.mark.parametrize("grad_layout", ["contiguous", "channels_last", "every_other", "expanded"])
@pytest.mark.parametrize("param_layout", LAYOUTS)
@pytest.mark.parametrize("name", ["adamw", "sgd_momentum", "lamb", "adamp_nesterov"])
def test_layouts(name: str, param_layout: str, grad_layout: str, state_layout: str) -> None:
    """The layout changes nothing but the order of memory."""
    dtype = torch.bfloat16 if name == "adamw" else torch.float32
    plain = make_bucket(name, [torch.randn(SHAPE).to(dtype)], [torch.randn(SHAPE).to(dtype)])
    lay_grad = expanded if grad_layout == "expanded" else LAYOUTS[grad_layout]
    plain.grads = [lay_grad(grad).contiguous() for grad in plain.grads]
    laid = copy_bucket(plain)
    laid.params = [LAYOUTS[param_layout](p) for p in plain.params]
    laid.grads = [lay_grad(g) for g in plain.grads]
    laid.states = [[LAYOUTS[state_layout](t) for t in state] for state in plain.states]
    assert torch.equal(laid.grads[0], plain.grads[0])
    for _ in range(3):
        run_native(laid)
        run_reference(plain)
        assert_states_equal(laid, plain)
        assert_params_near(laid, plain, units=3 if dtype is torch.bfloat16 else 4)  # three steps


@pytest.mark.parametrize("layout", [every_other, middle_rows])
@pytest.mark.parametrize("name", ["adamw", "adamp"])
def test_neighbours_are_untouched(name: str, layout: Callable[[Tensor], Tensor]) -> None:
    """What lies between and around the elements of a sliced parameter keeps its sentinels."""
    bucket = make_bucket(name, [layout(torch.randn(SHAPE))], [torch.randn(SHAPE)])
    bucket.states = [[layout(torch.zeros(SHAPE))] for _ in bucket.states]
    before = bucket.params[0].clone()
    run_native(bucket)
    assert not torch.equal(bucket.params[0], before)
    for tensor in (bucket.params[0], *(state[0] for state in bucket.states)):
        whole = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage())
        assert int((whole == SENTINEL).sum()) == whole.numel() - tensor.numel()


def test_large_strided_tensor() -> None:
    """Gathered tile by tile: a matrix with another order in memory, larger than a unit of work."""
    param, grad = torch.randn(700, 300), torch.randn(300, 700).t()
    for name in ("adamw", "lamb", "adamp"):
        plain = make_bucket(name, [param.clone()], [grad.contiguous()])
        laid = copy_bucket(plain)
        laid.params = [reversed_dims(param)]
        laid.grads = [grad]
        run_native(laid)
        run_reference(plain)
        assert_states_equal(laid, plain)
        assert_params_near(laid, plain, units=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 3000), (40, 64), (70, 200), (600, 8), (130, 9), (70001,)])
@pytest.mark.parametrize("name", ["adamw", "sgd_momentum", "lamb", "adamp", "adamp_nesterov"])
def test_in_place_and_through_tiles(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The same bits, for rows of every kind of length; in place, the updates of small tensors are kept as well."""
    param, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    plain = make_bucket(name, [param.clone()], [grad])
    apart = copy_bucket(plain)
    apart.grads = [torch.stack([grad, grad], dim=-1)[..., 0]]
    for _ in range(3):
        run_native(plain)
        run_native(apart)
    assert_states_equal(plain, apart)
    assert torch.equal(plain.params[0], apart.params[0])


@pytest.mark.parametrize("layout", ["channels_last", "every_other", "permuted"])
def test_random_bits_follow_the_logical_index(layout: str) -> None:
    """Stochastic rounding gives an element the same bits wherever it lies."""
    plain = make_bucket(
        "sgd_momentum",
        [torch.randn(SHAPE).bfloat16()],
        [torch.randn(SHAPE).bfloat16()],
        state_dtype=torch.bfloat16,
    )
    rounding = Rounding(3, 3, 2, [0], [0])
    plain.rounding = rounding
    laid = copy_bucket(plain)
    laid.params = [LAYOUTS[layout](plain.params[0])]
    laid.states = [[LAYOUTS[layout](t) for t in state] for state in plain.states]
    for step in range(3):
        for bucket in (plain, laid):
            new_grads(bucket, step)
            run_native(bucket)
        assert_states_equal(laid, plain)
        assert torch.equal(laid.params[0], plain.params[0])


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# Many short sums, because the last bits of a long one mostly vanish in float32; and a tensor of two units of work.
SUMMED = [SHAPE] * 100 + [(80, 33, 6, 5)]


def summed_bucket(name: str, **options: Any) -> Bucket:
    """States as after some steps, and numbers that make the sums count: no limit of norms, every row projected."""
    bucket = random_bucket(name, SUMMED, torch.bfloat16 if options else torch.float32, **options)
    bucket.states = [[torch.rand(shape) for shape in SUMMED] for _ in bucket.states]
    limit = "max_weight_norm" if name == "lamb" else "delta"
    bucket.scalars = bucket.scalars._replace(**{limit: 1e6})
    return bucket


def after_a_step(
    start: Bucket, param: str, grad: str = "contiguous", state: str = "contiguous"
) -> Bucket:
    """A copy of a bucket with its tensors laid out so, after a step."""
    bucket = copy_bucket(start)
    bucket.params = [LAYOUTS[param](t) for t in start.params]
    bucket.grads = [LAYOUTS[grad](t) for t in start.grads]
    bucket.states = [[LAYOUTS[state](t) for t in tensors] for tensors in start.states]
    run_native(bucket)
    return bucket


def same_params(one: Bucket, other: Bucket) -> bool:
    return all(map(torch.equal, one.params, other.params))


@pytest.mark.parametrize("param_layout", LAYOUTS)
@pytest.mark.parametrize("name", ["lamb", "adamp", "adamp_nesterov"])
def test_sums_follow_the_parameter_alone(
    name: str, param_layout: str, threads: Callable[[int], None]
) -> None:
    """Same shape and strides of the parameter, same bits; however gradient and states are laid out, on any threads."""
    start = summed_bucket(name)
    threads(1)
    expected = after_a_step(start, param_layout)
    grads, states = ("contiguous", "reversed", "every_other"), ("channels_last", "permuted")
    # One run on two threads: with more of them than cores, torch's threads spin while they wait for each other.
    for count, grad, state in [*product((1,), grads, states), (2, "reversed", "permuted")]:
        threads(count)
        found = after_a_step(start, param_layout, grad, state)
        assert same_params(found, expected), (count, grad, state)
        assert_states_equal(found, expected)


@pytest.mark.parametrize("layout", ["every_other", "middle_rows"])
@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_only_the_order_of_strides_counts(name: str, layout: str) -> None:
    """A slice of something larger is added up as a contiguous tensor is."""
    start = summed_bucket(name)
    expected, found, other = (
        after_a_step(start, each) for each in ("contiguous", layout, "permuted")
    )
    assert same_params(found, expected)
    assert not same_params(other, expected)  # these sums do show their order


def test_adamp_adds_rows_in_the_order_of_their_other_dimensions() -> None:
    """Dim 0 comes first whatever its stride: a transposed matrix has the bits of a contiguous one."""
    start = random_bucket("adamp", [(30, 7)] * 100 + [(300, 700)])
    start.scalars = start.scalars._replace(delta=1e6)
    turned = copy_bucket(start)
    turned.params = [reversed_dims(param) for param in start.params]
    for bucket in (start, turned):
        run_native(bucket)
    assert same_params(start, turned)


@pytest.mark.parametrize("param_layout", LAYOUTS)
@pytest.mark.parametrize("name", ["lamb", "adamp"])
def test_sums_follow_the_master_copy(name: str, param_layout: str) -> None:
    """With master weights it is the shape and strides of the master copy that count, not those of the parameter."""
    start = summed_bucket(name, masters=True)
    expected, found = (after_a_step(start, each) for each in ("contiguous", param_layout))
    assert found.masters is not None and expected.masters is not None
    assert all(map(torch.equal, found.masters, expected.masters))
    assert same_params(found, expected)
