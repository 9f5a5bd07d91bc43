"""Every optimizer case on the simulated NPU: the lists backend, with the numbers it has on the CPU."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cases import Case, Options, each_case, each_setting
from ingot import backends
from ingot.optimizer import FusedOptimizer
from state_types import assert_kept, enough
from training import (
    SHAPES,
    assert_same,
    give_grads,
    make_params,
    params_of,
    tensors_of,
    unclipped,
)


def to_npu(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [Parameter(param.detach().npu()) for param in params]


def make_pair(
    case: Case, options: Options, dtype: torch.dtype = torch.float32, **more: Any
) -> tuple[FusedOptimizer, FusedOptimizer]:
    """The same optimizer over the same parameters: on the NPU, and on the CPU with the lists backend."""
    params = make_params(enough(SHAPES, more.get("state_dtype")), dtype)
    npu = case.make(to_npu(params), **options, **more)
    return npu, case.make(params, **options, **more, backend="lists")


def step(npu: FusedOptimizer, cpu: FusedOptimizer, number: int) -> None:
    """One step of both, with the same gradients."""
    params = params_of(cpu)
    give_grads(params, number)
    for ours, theirs in zip(params_of(npu), params, strict=True):
        ours.grad = None if theirs.grad is None else theirs.grad.npu()
    npu.step()
    cpu.step()


def on_host(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def assert_same_numbers(npu: FusedOptimizer, cpu: FusedOptimizer) -> None:
    ours = tensors_of(npu)
    assert {t.device.type for name, t in ours.items() if not name.startswith("step")} == {"npu"}
    ours, theirs = on_host(ours), on_host(tensors_of(cpu))
    if cpu.grad_norm is None and cpu.spec.finish is None:
        # The same operators on the same numbers, in the same order: not a bit may differ.
        assert_same(ours, theirs)
        return
    # Norms for clipping and the sums of LAMB and AdamP are added up in float32 on an NPU, in float64 on the CPU: some
    # 1e-6 of the gradient, one unit in the last place where the result is stored in 16 bits.
    rtol = max(1e-5, *(torch.finfo(param.dtype).eps for param in params_of(cpu)))
    # RMSprop's buffer adds up updates of either sign, as large as 10, which may cancel.
    atol = 1e-5 if cpu.spec.name.startswith("rmsprop") else 1e-7
    assert_same(ours, theirs, rtol=rtol, atol=atol)


@each_setting
def test_same_as_the_lists_backend_on_the_cpu(case: Case, options: Options) -> None:
    npu, cpu = make_pair(case, options)
    start = make_params()
    for number in range(5):
        step(npu, cpu, number)
    assert_same_numbers(npu, cpu)
    if options.get("lr") != 0:
        assert not params_of(npu)[0].cpu().equal(start[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@each_case
def test_other_types(case: Case, dtype: torch.dtype) -> None:
    npu, cpu = make_pair(case, {"lr": 0.01}, dtype)
    for number in range(4):
        step(npu, cpu, number)
    assert_same_numbers(npu, cpu)


@pytest.mark.parametrize(
    "more",
    [
        {"master_weights": True},
        {"rounding": "stochastic"},
        {"state_dtype": torch.bfloat16},
        {"state_dtype": "8bit"},
        {"state_dtype": "8bit", "rounding": "stochastic"},
    ],
    ids=["masters", "stochastic", "bfloat16 states", "8-bit states", "8-bit states, stochastic"],
)
@each_case
def test_precision_options(case: Case, more: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    # The 8-bit format takes the roots of states: on a CPU in float64, on another device with the kernel of that device.
    # The kernel of the simulated one is torch's for the CPU, which rounds a root in a hundred to the wrong neighbour.
    monkeypatch.setattr("ingot.storage.blockwise8.sqrt", lambda x: x.double().sqrt().float())
    options: Options = {"lr": 0.01} | ({"momentum": 0.9} if case.name == "sgd" else {})
    if more.get("state_dtype") == "8bit":
        # A norm in float32 shifts gradients by 1e-6, which moves a number here and there to the next code.
        options |= unclipped(case)
    npu, cpu = make_pair(case, options, torch.bfloat16, **more)
    for number in range(4):
        step(npu, cpu, number)
    assert_kept(npu, more.get("state_dtype"))
    assert_same_numbers(npu, cpu)


@each_case
def test_clipping_and_state_dict(case: Case) -> None:
    npu, cpu = make_pair(case, {"lr": 0.01})
    for number in range(2):
        step(npu, cpu, number)
    for norm_type in (2.0, torch.inf, 1.0):
        norms = [o.clip_grad_norm_fused_(0.1, norm_type) for o in (npu, cpu)]
        assert norms[0].item() == pytest.approx(norms[1].item(), rel=5e-6)  # float32, float64
    for ours, theirs in zip(params_of(npu), params_of(cpu), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-9)
    # States of one device continue on the other.
    crossed = case.make(to_npu(params_of(cpu)), lr=0.01)
    crossed.load_state_dict(cpu.state_dict())
    step(crossed, cpu, 2)
    assert_same_numbers(crossed, cpu)


@each_case
def test_a_model_that_moves_between_steps(case: Case) -> None:
    npu, cpu = make_pair(case, {"lr": 0.01})
    for number in range(2):
        step(npu, cpu, number)
    for param in params_of(npu):  # to the host and back, as model.cpu() and model.npu() do
        with torch.no_grad():
            other = Parameter(param.cpu())
            other.copy_(param)
            param.set_(other.npu())
    step(npu, cpu, 2)
    assert_same_numbers(npu, cpu)


def test_lists_is_what_an_npu_gets() -> None:
    assert backends.choose_for("npu")[0] == "lists"


class WatchOperators(TorchDispatchMode):
    """Counts operators, and notes which of them meet NPU tensors, of which types."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.on_npu: set[str] = set()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.counts[str(func)] += 1
        leaves = tree_leaves((args, kwargs, result))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_npu}
        self.dtypes |= dtypes
        if dtypes:
            self.on_npu.add(func._schema.name.removeprefix("aten::"))
        return result


@each_setting
def test_operators_per_step_do_not_grow(case: Case, options: Options) -> None:
    counts = []
    for copies in (1, 8):
        params = to_npu(make_params([shape for shape in SHAPES if 0 not in shape] * copies))
        optimizer = case.make(params, **options)
        for number in range(2):
            for param in params:
                param.grad = torch.full_like(param, 0.1 * (number + 1))
            with WatchOperators() as counter:
                optimizer.step()
        for view in (
            "aten.view.default",
            "aten.slice.Tensor",
        ):  # nothing runs on the device for them
            del counter.counts[view]
        counts.append(counter.counts)
    assert counts[0] == counts[1]
    assert 0 < counts[0].total() < 200


# What a step may ask of a real NPU: operators that any training uses, and those of foreach.
ORDINARY = frozenset(
    """
    _foreach_add _foreach_add_ _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ _foreach_copy_
    _foreach_div _foreach_div_ _foreach_lerp _foreach_lerp_ _foreach_maximum_ _foreach_mul
    _foreach_mul_ _foreach_norm _foreach_sqrt _foreach_sqrt_ _foreach_sub_ _to_copy abs add alias
    clamp copy_ div empty empty_like eq fill_ gt index_select linalg_vector_norm lt mul mul_ pow pow_
    reciprocal scalar_tensor select slice sqrt stack sub_ sum unbind unsqueeze view where zeros
    zeros_like
    """.split()  # noqa: SIM905
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_setting
def test_a_real_npu_is_asked_for_nothing_special(
    case: Case, options: Options, dtype: torch.dtype
) -> None:
    params = to_npu(make_params(dtype=dtype))
    optimizer = case.make(params, **options)
    watch = WatchOperators()
    for _ in range(2):
        for param in params:
            param.grad = torch.full_like(param, 0.1)
        with watch:
            optimizer.step()
            optimizer.clip_grad_norm_fused_(0.5)
    assert {"_foreach_mul_", "mul"} <= watch.on_npu
    assert watch.on_npu - ORDINARY == set()
    assert torch.float64 not in watch.dtypes  # slow or missing there
