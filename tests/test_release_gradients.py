"""The step inside backward: the same bits as normal steps, and gradients that are gone when backward ends."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from cases import Case, each_backend, each_case, each_setting
from ingot.step.parcels import WORTH_AN_UPDATE, Parcel
from training import assert_same, fit, make_params, small_model, tensors_of, through_a_file

# Small ones that are updated together, and two that are large enough for an update of their own.
SHAPES = [(7,), (4, 3), (), (0,), (130, 127), (33, 31), (2, 3, 2, 2), (65,), (WORTH_AN_UPDATE,)]
PRECISIONS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float64": (torch.float64, {}),
    "complex": (torch.complex64, {}),
    "bfloat16": (torch.bfloat16, {}),
    "float16 states": (torch.float32, {"state_dtype": torch.float16}),
    "masters": (torch.bfloat16, {"master_weights": True}),
    "stochastic": (torch.bfloat16, {"rounding": "stochastic", "state_dtype": "param"}),
    "8 bits": (torch.float32, {"state_dtype": "8bit"}),
    "maximize": (torch.float32, {"maximize": True}),
}


def unclipped(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """The options without those that need all gradients at once."""
    options = {**options, "max_grad_norm": -1 if case.name == "bert_adam" else None}
    return options | ({"use_global_grad_norm": False} if case.name == "lamb" else {})


def make(case: Case, params: Any, **options: Any) -> Any:
    return case.make(params, **unclipped(case, options))


def backward(params: Sequence[Tensor], step: int, without: Sequence[int] = ()) -> None:
    """Gradients for step ``step``, from a backward pass; the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    total = torch.zeros(())
    for number, param in enumerate(params):
        factor = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        if number not in without:
            total = total + (param * factor.to(param.dtype)).sum().abs().float()
    total.backward()


def train(
    optimizer: Any,
    params: Sequence[Tensor],
    steps: int = 6,
    first: int = 0,
    without: Callable[[int], Sequence[int]] = lambda step: (),
) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        backward(params, step, without(step))
        if optimizer._released is not None:
            assert all(param.grad is None for param in params)
        optimizer.step()


def compare(case: Case, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES, dtype)
        optimizer = make(case, params, **options)
        if released:
            optimizer.release_gradients()
        train(optimizer, params)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


@each_setting
def test_the_same_bits_as_normal_steps(case: Case, options: dict[str, Any]) -> None:
    compare(case, options)


@each_case
@each_backend
def test_on_every_backend(case: Case, backend: str) -> None:
    compare(case, {"backend": backend})


@each_case
@pytest.mark.parametrize("precision", PRECISIONS)
def test_in_every_precision(case: Case, precision: str) -> None:
    dtype, options = PRECISIONS[precision]
    compare(case, options, dtype)


@each_case
def test_parameters_that_get_no_gradient_are_left_alone(case: Case) -> None:
    missing = [(), (0, 4), (1,), (), (4, 8), ()]
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        params[5].requires_grad_(False)
        optimizer = make(case, params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, without=lambda step: (*missing[step], 5))
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


class Net(nn.Module):
    """One matrix used twice, and layers small and large."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 1100), nn.Tanh(), nn.Linear(1100, 16)) for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + (
                layer(x)
                if self.reentrant is None
                else checkpoint(layer, x, use_reentrant=self.reentrant)
            )
        return nn.functional.linear(x, self.embed.weight).logsumexp(-1).mean()


def train_net(net: nn.Module, optimizer: Any, steps: int = 5, scheduler: Any = None) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randint(40, (8,), generator=generator))
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@each_case
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_a_network_with_tied_weights_and_a_schedule(case: Case, reentrant: bool | None) -> None:
    runs = []
    for released in (False, True):
        net = Net(reentrant)
        optimizer = make(case, net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        if released:
            optimizer.release_gradients()
        losses = train_net(net, optimizer, scheduler=scheduler)
        runs.append({**tensors_of(optimizer), "losses": torch.tensor(losses)})
    assert_same(*runs)


def test_a_matrix_used_in_two_reentrant_checkpoints_is_refused() -> None:
    """Autograd runs a backward of its own for each: the first gradient is not complete."""
    layer = nn.Linear(4, 4)
    optimizer = adamw(layer.parameters())
    x = torch.randn(2, 4, requires_grad=True)
    with optimizer.release_gradients() as handle:
        y = checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True)
        with pytest.raises(RuntimeError, match=r"a second gradient.*use_reentrant=False"):
            y.sum().backward()
        handle.discard()
        y = checkpoint(layer, checkpoint(layer, x, use_reentrant=False), use_reentrant=False)
        y.sum().backward()
        optimizer.step()


def adamw(params: Any, **options: Any) -> Any:
    from ingot import AdamW

    return AdamW(params, lr=0.01, **options)


def test_large_parameters_are_updated_and_freed_while_backward_runs() -> None:
    """Seen from hooks on the activations: the later layer is done before the gradient of the earlier one is made."""
    net = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
    before = [param.detach().clone() for param in net.parameters()]
    optimizer = adamw(net.parameters())
    optimizer.release_gradients()
    seen = []
    hidden = net[0](torch.randn(2, 200))
    hidden.register_hook(
        lambda _: seen.append(
            [bool((a != b).any()) for a, b in zip(before, net.parameters(), strict=True)]
        )
    )
    output = net[1](hidden)
    output.sum().backward()
    # The gradient of the hidden layer is computed with that of net[1].weight, which is updated next.
    assert seen[0][:2] == [False, False]
    assert all(bool((a != b).any()) for a, b in zip(before, net.parameters(), strict=True))


def test_at_most_one_large_gradient_is_alive() -> None:
    net = nn.Sequential(*(nn.Linear(150, 150, bias=False) for _ in range(6)))
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = []
    optimizer = adamw(net.parameters())

    def count(param: Tensor) -> None:  # called before the optimizer's own hook
        assert param.grad is not None
        alive.add(param.grad)
        most.append(len(alive))

    for param in net.parameters():
        param.register_post_accumulate_grad_hook(count)
    optimizer.release_gradients()
    net(torch.randn(2, 150)).sum().backward()
    assert most == [1] * 6


def test_the_quick_path_is_taken() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params, backend="native")
    handle = optimizer.release_gradients()
    train(optimizer, params, 4)
    parcels = {id(parcel): parcel for parcel in handle._parcels.values()}.values()
    assert len(parcels) == 3
    assert all(parcel.quick is not None for parcel in parcels)


def test_a_second_backward_is_refused_and_nothing_is_updated_by_it() -> None:
    params = make_params(SHAPES)
    optimizer = adamw([(f"p{i}", p) for i, p in enumerate(params)])
    handle = optimizer.release_gradients()
    backward(params, 0)
    assert len(handle.updated) == len(params) and handle.waiting == []
    before = {name: value.clone() for name, value in tensors_of(optimizer).items()}
    with pytest.raises(RuntimeError, match=r"parameter \d 'p\d' of group 0: a second gradient"):
        backward(params, 1)
    with pytest.raises(RuntimeError, match="did not finish"):
        optimizer.step()
    assert_same(tensors_of(optimizer), before)
    handle.discard()
    train(optimizer, params, 2)


def test_losses_with_parameters_of_their_own_may_go_backward_one_by_one() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        for step in range(4):
            optimizer.zero_grad()
            backward(params, step, without=range(4))
            backward(params, step, without=range(4, len(params)))
            optimizer.step()
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


class Fails(torch.autograd.Function):
    """Passes its input on, and fails in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise OSError("no")


def test_a_failed_backward_says_what_was_updated() -> None:
    names = ["early.weight", "early.bias", "late.weight", "late.bias"]
    early, late = nn.Linear(150, 150), nn.Linear(150, 150)
    params = [*early.parameters(), *late.parameters()]
    before = [param.detach().clone() for param in params]
    optimizer = adamw(list(zip(names, params, strict=True)))
    handle = optimizer.release_gradients()
    x = torch.randn(2, 150)
    with pytest.raises(OSError, match="no"):
        late(Fails.apply(early(x))).sum().backward()
    assert handle.updated == ["parameter 2 'late.weight' of group 0"]
    assert handle.waiting == ["parameter 3 'late.bias' of group 0"]
    changed = [bool((a != b).any()) for a, b in zip(before, params, strict=True)]
    assert changed == [False, False, True, False]
    told = r"did not finish: 1 of 4 parameters were updated \(.*late.weight.*\); 1 more .*late.bias.*discard\(\)"
    with pytest.raises(RuntimeError, match=told):
        optimizer.step()
    with pytest.raises(RuntimeError, match=told):
        late(early(x)).sum().backward()
    handle.discard()
    assert handle.updated == handle.waiting == []
    late(early(x)).sum().backward()
    optimizer.step()
    steps = [int(optimizer.state[param]["step"]) for param in params]
    assert steps == [1, 1, 2, 1]


def test_an_update_that_fails_leaves_the_others_right() -> None:
    params = [Parameter(torch.randn(130, 130)), Parameter(torch.randn(130, 130))]
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    optimizer.state[params[0]]["exp_avg"] = torch.zeros(3)
    before = params[0].detach().clone()
    with pytest.raises(RuntimeError, match="its state exp_avg is"):
        (params[0].tanh() @ params[1]).sum().backward()
    assert torch.equal(params[0], before) and params[0].grad is not None
    assert handle.waiting == ["parameter 0 of group 0"]
    del optimizer.state[params[0]]
    handle.discard()
    train(optimizer, params, 2)


def test_step_updates_gradients_that_were_set_by_hand() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        for step in range(3):
            optimizer.zero_grad()
            backward(params, step, without=(0, 4))
            params[0].grad, params[4].grad = torch.ones(7), torch.ones(130, 127)
            optimizer.step()
            assert not released or all(param.grad is None for param in params)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_parameters_replaced_unfrozen_moved_and_added_on_the_way() -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        params[1].requires_grad_(False)
        optimizer = adamw(params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, 3, without=lambda _: (1,))
        params[1].requires_grad_(True)
        params[4].data = params[4].data.t().contiguous().t()
        params[6] = Parameter(torch.ones(5, 5))
        optimizer.param_groups[0]["params"][6] = params[6]
        # Those without a hook yet are updated by step().
        optimizer.zero_grad()
        backward(params, 10)
        optimizer.step()
        params.append(Parameter(torch.ones(200, 100)))
        optimizer.add_param_group({"params": [params[-1]], "lr": 0.5})
        train(optimizer, params, 4, first=20)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_a_parameter_that_left_the_optimizer_keeps_its_gradient() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    optimizer.release_gradients()
    gone = optimizer.param_groups[0]["params"].pop()
    backward(params, 0)
    assert gone.grad is not None
    assert all(param.grad is None for param in params[:-1])
    optimizer.step()
    assert gone not in optimizer.state


@each_case
def test_states_are_saved_and_loaded(case: Case) -> None:
    runs = []
    for released in (False, True):
        params = make_params(SHAPES)
        optimizer = make(case, params)
        if released:
            optimizer.release_gradients()
        train(optimizer, params, 4)
        saved = through_a_file(optimizer.state_dict())
        train(optimizer, params, 2, first=4)
        optimizer.load_state_dict(saved)
        train(optimizer, params, 4, first=6)
        runs.append(tensors_of(optimizer))
    assert_same(*runs)


def test_removing_the_handle_brings_normal_steps_back() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="released already"):
        optimizer.release_gradients()
    train(optimizer, params, 3)
    handle.remove()
    handle.remove()
    backward(params, 3)
    assert all(param.grad is not None for param in params)
    optimizer.step()
    optimizer.zero_grad()
    with optimizer.release_gradients() as again:
        train(optimizer, params, 1, first=4)
    assert again is not handle and optimizer._released is None
    plain = make_params(SHAPES)
    other = adamw(plain)
    train(other, plain, 5)
    assert_same(tensors_of(optimizer), tensors_of(other))


def test_closures_and_hooks_on_steps() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    optimizer.release_gradients()
    calls: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append([p.grad for p in params]))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> int:
        optimizer.zero_grad()
        backward(params, len(calls))
        return 5

    assert [optimizer.step(closure) for _ in range(3)] == [5] * 3
    assert calls == [[None] * len(params), "after"] * 3
    assert [int(optimizer.state[p]["step"]) for p in params] == [3] * len(params)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_normal_optimizers(copied: Callable[[Any], Any]) -> None:
    params, plain = make_params(SHAPES), make_params(SHAPES)
    optimizer, expected = adamw(params), adamw(plain)
    optimizer.release_gradients()
    train(optimizer, params, 3)
    train(expected, plain, 4)
    other = copied(optimizer)
    theirs = other.all_params()
    backward(theirs, 3)
    assert other._released is None and all(param.grad is not None for param in theirs)
    other.step()
    assert_same(tensors_of(other), tensors_of(expected))
    train(optimizer, params, 1, first=3)
    assert_same(tensors_of(optimizer), tensors_of(expected))


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_nothing_lives_longer(steps: int) -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    handle = optimizer.release_gradients()
    train(optimizer, params, steps)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None
    backward(params, 0)  # the hooks are still there, and do nothing
    assert all(param.grad is not None for param in params)
    param, watcher = weakref.ref(params[0]), weakref.ref(handle)
    params.clear()
    assert param() is None
    handle.remove()
    del handle
    assert watcher() is None


def test_several_threads_may_go_backward_at_once() -> None:
    params = [make_params([(130, 130), (7,), (40, 40)], seed=seed) for seed in range(4)]
    plain = [make_params([(130, 130), (7,), (40, 40)], seed=seed) for seed in range(4)]
    optimizer = adamw([p for each in params for p in each])
    other = adamw([p for each in plain for p in each])
    optimizer.release_gradients()
    for step in range(4):
        threads = [threading.Thread(target=backward, args=(each, step)) for each in params]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in plain:
            backward(each, step)
        optimizer.step()
        other.step()
        other.zero_grad()
    assert_same(tensors_of(optimizer), tensors_of(other))


def test_retain_graph_and_nested_backward() -> None:
    """A graph that is used again after an update is out of date, and autograd says so."""
    layer = nn.Linear(150, 150)
    optimizer = adamw(layer.parameters())
    optimizer.release_gradients()
    loss = layer(layer(torch.randn(2, 150))).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    optimizer.zero_grad()

    # A backward of its own inside a backward hook, over other parameters of the same optimizer.
    inner = Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [inner]})
    x = torch.randn(2, 150, requires_grad=True)

    def nested(_: Tensor) -> None:
        with torch.enable_grad():
            (inner * 2).sum().backward()

    x.register_hook(nested)
    layer(x).sum().backward()
    optimizer.step()
    assert not torch.equal(inner, torch.ones(3))
    assert [int(optimizer.state[p]["step"]) for p in (*layer.parameters(), inner)] == [2, 2, 1]


def test_what_needs_all_gradients_is_refused() -> None:
    from ingot import SGD, AdamW, BertAdam, Lamb

    param = Parameter(torch.ones(3))
    for optimizer, option in (
        (AdamW([param], max_grad_norm=1.0), "max_grad_norm=1.0 of group 0"),
        (SGD([param], lr=0.1, max_grad_norm=0.5), "max_grad_norm=0.5 of group 0"),
        (BertAdam([param]), "max_grad_norm=1.0 of group 0"),
        (Lamb([param], use_global_grad_norm=True), "use_global_grad_norm=True of group 0"),
    ):
        with pytest.raises(ValueError, match=f"{option} needs the norm of all gradients"):
            optimizer.release_gradients()
        assert optimizer._released is None and not param._post_accumulate_grad_hooks

    optimizer = AdamW([param])
    handle = optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="clip_grad_norm_fused_ needs the norm of all gradients"):
        optimizer.clip_grad_norm_fused_(1.0)
    with pytest.raises(ValueError, match="max_grad_norm=2 of group 1 needs"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(2))], "max_grad_norm": 2})
    assert len(optimizer.param_groups) == 1
    optimizer.param_groups[0]["max_grad_norm"] = 3.0
    with pytest.raises(ValueError, match=r"max_grad_norm=3\.0 of group 0 needs"):
        param.sum().backward()
    assert torch.equal(param, torch.ones(3))
    handle.remove()


def test_gradients_and_parameters_that_cannot_be_released_are_refused() -> None:
    param = Parameter(torch.ones(3))
    optimizer = adamw([("w", param)])
    param.grad = torch.ones(3)
    with pytest.raises(
        RuntimeError, match=r"parameter 0 'w' of group 0: it has a gradient already"
    ):
        optimizer.release_gradients()
    optimizer.zero_grad()
    optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        (param * param).sum().backward(create_graph=True)
    assert torch.equal(param, torch.ones(3))

    other = Parameter(torch.ones(3))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        twice = adamw([other, other])
    with pytest.raises(ValueError, match="parameter 1 of group 0: it stands in the list twice"):
        twice.release_gradients()


@pytest.mark.parametrize("used", ["before", "after"])
def test_a_grad_scaler_is_refused_before_anything_is_updated(used: str) -> None:
    param = Parameter(torch.ones(3))
    optimizer = adamw([param])
    scaler = torch.amp.GradScaler("cpu")
    if used == "before":
        scaler.scale(torch.ones(()))
        with pytest.raises(RuntimeError, match="a GradScaler is in use"):
            optimizer.release_gradients()
        assert optimizer._released is None
        return
    optimizer.release_gradients()
    with pytest.raises(RuntimeError, match="a GradScaler is in use"):
        scaler.scale(param.sum()).backward()
    with pytest.raises(RuntimeError, match="a GradScaler is in use"):
        scaler.step(optimizer)
    assert torch.equal(param, torch.ones(3)) and not optimizer.state
    assert "found_inf" not in vars(optimizer)


def test_a_scaler_that_nobody_has_any_more_does_not_matter() -> None:
    scaler: Any = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.itself = scaler
    del scaler
    net = small_model()
    optimizer = adamw(net.parameters())
    with optimizer.release_gradients():
        fit(net, optimizer)


def test_a_scaler_that_is_switched_off_does_not_matter() -> None:
    net = small_model()
    optimizer = adamw(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(torch.ones(()))
    with optimizer.release_gradients():
        fit(net, optimizer)


class FakeStream:
    """Remembers for whom it was told to wait."""

    def __init__(self) -> None:
        self.device, self.waited = torch.device("meta"), []  # type: ignore[var-annotated]

    def wait_stream(self, other: FakeStream) -> None:
        self.waited.append(other)


def test_small_gradients_made_on_other_streams_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update runs on the stream of the last gradient of its parcel."""
    one, two, three = (FakeStream() for _ in range(3))
    current = iter([one, two, one, three, three, three])
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: next(current))
    parcel = Parcel([4, 5, 6, 7])
    for ordinal in parcel.ordinals:
        parcel.add(ordinal, torch.device("meta"))
    current = iter([three] * 3)
    parcel.wait()
    assert three.waited == [one, two] and one.waited == two.waited == []
    parcel.clear()
    parcel.wait()
    assert parcel.arrived == [] and three.waited == [one, two]
