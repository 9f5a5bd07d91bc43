"""create_optimizer and list_optimizers: every optimizer by name, and what is refused how."""

import re
from typing import Any

import pytest
import torch

import ingot
from cases import Case, each_case, each_setting
from cases.declare import REQUIRED
from ingot import optim
from ingot.cli.bench import parse
from ingot.cli.bench.peers import OURS
from training import assert_same, make_params, small_model, tensors_of, train

SHORT = {name.removeprefix("NpuFused").lower(): name for name in optim.__all__}


def test_the_list_has_every_optimizer_and_takes_wildcards() -> None:
    assert ingot.list_optimizers() == sorted(SHORT)
    assert ingot.list_optimizers("LAM?") == ["lamb"]
    assert ingot.list_optimizers("*adam*") == sorted(name for name in SHORT if "adam" in name)
    assert ingot.list_optimizers("[as]*") == sorted(name for name in SHORT if name[0] in "as")
    assert ingot.list_optimizers("no such thing") == []
    with pytest.raises(TypeError, match="pattern must be a string, got 3"):
        ingot.list_optimizers(3)


@pytest.mark.parametrize("name", SHORT)
def test_every_spelling_leads_to_the_class(name: str) -> None:
    full = SHORT[name]
    spellings = {name, name.upper(), full, full.lower(), f"npu_fused_{name}", f"npu-fused-{name}"}
    for spelling in spellings | {"-".join(name)}:
        made = ingot.create_optimizer(make_params(), spelling, lr=0.1)
        assert type(made) is getattr(optim, full)


def test_the_names_of_the_benchmark_are_taken_too() -> None:
    for name, full in OURS.items():
        assert type(ingot.create_optimizer(make_params(), name, lr=0.1)) is getattr(optim, full)
    for name in ingot.list_optimizers():
        (known,) = parse(["--optimizers", name]).optimizers
        assert OURS[known] == SHORT[name]


@each_setting
def test_options_are_handed_on(case: Case, options: dict[str, Any]) -> None:
    """The same parameters after the same steps as from the class itself."""
    pairs = []
    for make in (case.kind, lambda p, **o: ingot.create_optimizer(p, case.name, **o)):
        params = make_params()
        optimizer = make(params, **{"lr": 1e-2, **options})
        train(optimizer, params, 3)
        pairs.append(tensors_of(optimizer))
    assert_same(*pairs)


@each_case
def test_a_model_gets_groups_with_the_decay_of_the_class(case: Case) -> None:
    net = small_model()
    default = case.kind(make_params(), lr=0.1).defaults["weight_decay"]
    for given, expected in ((None, default), (0.25, 0.25)):
        made = ingot.create_optimizer(net, case.name, lr=0.1, weight_decay=given)
        assert [group["weight_decay"] for group in made.param_groups] == [expected, 0.0]
        assert all(group["lr"] == 0.1 for group in made.param_groups)
        assert made.defaults["weight_decay"] == expected
        names = [name for group in made.param_groups for name in group["param_names"]]
        assert sorted(names) == sorted(name for name, _ in net.named_parameters())


@each_case
def test_layer_decay_starts_from_the_rate_given_or_the_default(case: Case) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    made = ingot.create_optimizer(net, case.name, lr=0.4, layer_decay=0.5)
    assert [group["lr"] for group in made.param_groups] == [0.2, 0.4]
    if case.signature["lr"] is REQUIRED:
        with pytest.raises(ValueError, match=f"{case.kind.__name__}: lr must be given"):
            ingot.create_optimizer(net, case.name, layer_decay=0.5)
    else:
        made = ingot.create_optimizer(net, case.name, layer_decay=0.5)
        top = made.defaults["lr"]
        assert [group["lr"] for group in made.param_groups] == [top / 2, top]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("lam", "Did you mean 'lamb'?"), ("Adam-WW", "Did you mean 'adamw'?"), ("zzz", "There are: ")],
)
def test_an_unknown_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no optimizer named {name!r}.")) as caught:
        ingot.create_optimizer(make_params(), name, lr=0.1)
    assert hint in str(caught.value)
    assert all(known in str(caught.value) for known in SHORT)


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="name must be a string such as 'adamw', got"):
        ingot.create_optimizer(make_params(), optim.NpuFusedLamb)


@each_case
def test_an_unknown_option_is_refused_with_a_hint(case: Case) -> None:
    expected = f"{case.kind.__name__} has no option 'max_gradnorm'; did you mean 'max_grad_norm'?"
    with pytest.raises(TypeError, match=re.escape(expected)):
        ingot.create_optimizer(small_model(), case.name, lr=0.1, max_gradnorm=1.0)


def test_layer_decay_needs_a_model() -> None:
    with pytest.raises(ValueError, match=r"layer_decay=0.5 needs a model.*got list"):
        ingot.create_optimizer(make_params(), "adamw", layer_decay=0.5)


def test_a_value_that_is_not_allowed_is_refused_by_the_class() -> None:
    with pytest.raises(ValueError, match=r"Invalid learning rate: -1.*NpuFusedAdamW: lr"):
        ingot.create_optimizer(make_params(), "adamw", lr=-1)
    with pytest.raises(ValueError, match="Invalid weight_decay value: -1"):
        ingot.create_optimizer(small_model(), "adamw", weight_decay=-1)
