"""State: saved and loaded bit for bit, interchangeable with torch.optim and torch_npu.optim."""

import pytest
import torch

from cases import CASES, Case, Options, each_backend, each_case, each_setting
from training import (
    SHAPES,
    assert_same,
    make_params,
    params_of,
    tensors_of,
    through_a_file,
    train,
    with_state,
)


def twins(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.nn.Parameter(param.detach().clone()) for param in params]


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_setting
def test_a_round_trip_mid_training_is_exact(
    case: Case, options: Options, dtype: torch.dtype, backend: str
) -> None:
    params = make_params(SHAPES, dtype)
    optimizer = case.make(params, **options, backend=backend)
    train(optimizer, params, 3)
    copies = twins(params)
    resumed = case.make(copies, lr=7.0, backend=backend)  # every other option comes from the file
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    for name, value in optimizer.param_groups[0].items():
        if name != "params":
            assert resumed.param_groups[0][name] == value, name
    train(optimizer, params, 4, first=3)
    train(resumed, copies, 4, first=3)
    assert_same(tensors_of(resumed), tensors_of(optimizer))


@each_case
def test_several_groups_and_parameters_without_state(case: Case) -> None:
    def build(params: list[torch.Tensor]):
        groups = [{"params": params[:3], "lr": 0.1}, {"params": params[3:], "weight_decay": 0.2}]
        return with_state(case, groups)

    params = make_params()
    optimizer = build(params)
    train(optimizer, params[1:], 2)  # the first one never had a gradient
    copies = twins(params)
    resumed = build(copies)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert copies[0] not in resumed.state
    train(optimizer, params, 2, first=2)
    train(resumed, copies, 2, first=2)
    assert_same(tensors_of(resumed), tensors_of(optimizer))


TORCH_SETTINGS = [
    pytest.param(case, options, id=f"{name}-{key}".replace(" ", "_"))
    for name, case in CASES.items()
    if case.torch_kind is not None
    for key, options in case.options.items()
    if "max_grad_norm" not in options and not isinstance(options.get("lr"), torch.Tensor)
]


@pytest.mark.parametrize("theirs", [{"foreach": False}, {"foreach": True}, {}], ids=str)
@pytest.mark.parametrize(("case", "options"), TORCH_SETTINGS)
def test_torchs_checkpoint_goes_on_here(case: Case, options: Options, theirs: Options) -> None:
    params = make_params()
    optimizer = case.torch_kind(params, **options, **theirs)
    train(optimizer, params, 3)
    copies = twins(params)
    ours = case.make(copies, lr=7.0)
    ours.load_state_dict(through_a_file(optimizer.state_dict()))
    train(optimizer, params, 4, first=3)
    train(ours, copies, 4, first=3)
    for our, their in zip(copies, params, strict=True):
        torch.testing.assert_close(our, their, rtol=2e-6, atol=1e-6)
    assert not {"foreach", "fused"} & ours.param_groups[0].keys()


@pytest.mark.parametrize("theirs", [{"foreach": False}, {"foreach": True}], ids=str)
@pytest.mark.parametrize(("case", "options"), TORCH_SETTINGS)
def test_our_checkpoint_goes_on_in_torch(case: Case, options: Options, theirs: Options) -> None:
    params = make_params()
    optimizer = case.make(params, **options)
    train(optimizer, params, 3)
    copies = twins(params)
    their = case.torch_kind(copies, lr=7.0, **theirs)
    their.load_state_dict(through_a_file(optimizer.state_dict()))
    train(optimizer, params, 4, first=3)
    train(their, copies, 4, first=3)
    for our, other in zip(params, copies, strict=True):
        torch.testing.assert_close(our, other, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "lamb", "adamp", "bert_adam"])
def test_integer_steps_load(name: str) -> None:
    """torch_npu saves the step as a Python integer."""
    params = make_params()
    optimizer = CASES[name].make(params)
    train(optimizer, params, 3)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        assert torch.is_tensor(state["step"])
        state["step"] = int(state["step"])
    copies = twins(params)
    resumed = CASES[name].make(copies)
    resumed.load_state_dict(saved)
    train(optimizer, params, 2, first=3)
    train(resumed, copies, 2, first=3)
    assert_same(tensors_of(resumed), tensors_of(optimizer))


def test_lamb_of_torch_npu_loads() -> None:
    """It saves only lr, betas, eps and weight_decay; the rest keeps its value."""
    params = make_params()
    optimizer = CASES["lamb"].make(params, adam=True)
    train(optimizer, params, 2)
    saved = optimizer.state_dict()
    kept = ("lr", "betas", "eps", "weight_decay", "params")
    saved["param_groups"] = [{k: g[k] for k in kept} for g in saved["param_groups"]]
    resumed = CASES["lamb"].make(make_params(), adam=True)
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["adam"] is True
    assert_same(
        {k: v for k, v in tensors_of(resumed).items() if not k.startswith("param")},
        {k: v for k, v in tensors_of(optimizer).items() if not k.startswith("param")},
    )


@each_case
def test_loaded_tensors_are_copies(case: Case) -> None:
    params, others = make_params(), make_params()
    source, target = with_state(case, params), with_state(case, others)
    train(source, params, 2)
    target.load_state_dict(source.state_dict())
    frozen = {name: value.clone() for name, value in tensors_of(source).items()}
    train(target, others, 2, first=2)
    assert_same(tensors_of(source), frozen)
    assert params_of(target)[0] is others[0]


@each_case
def test_state_dict_is_a_picture_of_the_options(case: Case) -> None:
    """Options changed later do not change what was saved; tensors are shared, as in torch.optim."""
    params = make_params()
    optimizer = with_state(case, params, lr=0.25)
    train(optimizer, params, 1)
    saved = optimizer.state_dict()
    optimizer.param_groups[0]["lr"] = 0.5
    train(optimizer, params, 1, first=1)
    assert saved["param_groups"][0]["lr"] == 0.25
    if case.kind.spec.counted:
        assert saved["state"][0]["step"] == 1


@each_case
def test_what_is_saved_has_torchs_names_and_plain_types(case: Case) -> None:
    params = make_params()
    optimizer = with_state(case, params)
    train(optimizer, params, 1)
    saved = optimizer.state_dict()
    assert sorted(saved) == ["param_groups", "state"]
    names = set(case.kind.spec.variant(optimizer.param_groups[0]).states)
    if case.kind.spec.counted:
        names.add("step")
    assert list(saved["state"]) == list(range(len(params)))
    for param, state in zip(params, saved["state"].values(), strict=True):
        assert set(state) == names
        for name, value in state.items():
            assert value.shape == (() if name == "step" else param.shape)
            assert value.dtype is torch.float32
    assert saved["param_groups"][0]["params"] == list(range(len(params)))
    plain = (int, float, bool, str, tuple, type(None))
    for value in saved["param_groups"][0].values():
        assert isinstance(value, (*plain, list)) and type(value).__module__ == "builtins"


@each_case
def test_a_state_of_another_type_is_converted(case: Case) -> None:
    """A float64 state loads into a float32 optimizer as float32, and the other way round."""
    for one, two in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        params = make_params(dtype=one)
        source = with_state(case, params)
        train(source, params, 2)
        others = make_params(dtype=two)
        target = with_state(case, others)
        target.load_state_dict(source.state_dict())
        train(target, others, 1)
        for param in others:
            for name, value in target.state[param].items():
                assert name == "step" or value.dtype is two


@each_case
def test_an_empty_state_loads(case: Case) -> None:
    params = make_params()
    optimizer = with_state(case, params)
    fresh = optimizer.state_dict()
    train(optimizer, params, 2)
    optimizer.load_state_dict(fresh)
    assert len(optimizer.state) == 0
    train(optimizer, params, 1)
    if case.kind.spec.counted:
        assert int(optimizer.state[params[0]]["step"]) == 1


@each_case
def test_step_counts_are_saved_in_float32(case: Case) -> None:
    """Whatever the default type: a count of 1001 does not exist in bfloat16."""
    params = make_params([(3,)])
    optimizer = with_state(case, params)
    train(optimizer, params, 1)
    slots = optimizer.state[params[0]]
    if "step" not in slots:
        return
    slots["step"] = 1001
    torch.set_default_dtype(torch.bfloat16)
    try:
        saved = optimizer.state_dict()["state"][0]["step"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert saved.dtype is torch.float32 and saved == 1001
