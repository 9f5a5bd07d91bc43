"""PyTorch's conditions: what constructors and add_param_group take and refuse, names, defaults, copies, printing."""

import inspect
import pickle
import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from conditions import build, each_info, each_input, problem, train
from torch.nn import Linear, Parameter
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerInfo

from training import assert_same, tensors_of


def expect(info: OptimizerInfo, error: ErrorOptimizerInput, params: Any) -> None:
    """The constructor raises, or warns, what the entry says."""
    given = error.optimizer_error_input
    if issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=error.error_regex):
            info.optim_cls(params, **given.kwargs)
        return
    with pytest.raises(error.error_type, match=error.error_regex):
        info.optim_cls(params, **given.kwargs)


@each_info
def test_error_inputs(info: OptimizerInfo) -> None:
    """Wrong parameters, and wrong options with parameters that are right."""
    for error in info.optim_error_inputs_func("cpu", torch.float32):
        params = error.optimizer_error_input.params
        expect(info, error, [Parameter(torch.ones(2))] if params is None else params)


@each_info
def test_options_are_looked_at_before_parameters(info: OptimizerInfo) -> None:
    """As torch's own table has them: with None for parameters."""
    for error in info.optim_error_inputs_func("cpu", torch.float32):
        if error.optimizer_error_input.params is None:
            expect(info, error, None)


@each_info
def test_infos_leave_out_the_flags_of_torch(info: OptimizerInfo) -> None:
    """foreach, fused and differentiable choose torch's implementations; ours are chosen by ``backend``."""
    for given in info.optim_inputs_func():
        assert not {"foreach", "fused", "differentiable", "capturable"} & given.kwargs.keys()
    for flag in ("foreach", "fused", "differentiable", "capturable"):
        with pytest.raises(TypeError, match=flag):
            build(info, [Parameter(torch.ones(2))], **{flag: True})


@each_info
@pytest.mark.parametrize("option", ["lr", "weight_decay"])
def test_a_group_with_its_own_option(info: OptimizerInfo, option: str) -> None:
    """The group's value counts for the group, the default for the others, and both train as two optimizers do."""
    weight, bias, data = problem()
    one, other, _ = problem()
    clip = {"max_grad_norm": -1} if "BertAdam" in info.name else {}
    values = {"lr": (0.01, 0.001), "weight_decay": (0.3, 0.0)}[option]
    groups = [{"params": [weight], option: values[0]}, {"params": [bias]}]
    whole = build(info, groups, **{option: values[1], **clip})
    assert [group[option] for group in whole.param_groups] == list(values)
    assert whole.defaults[option] == values[1]
    parts = [
        build(info, [p], **{option: v, **clip}) for p, v in zip((one, other), values, strict=True)
    ]
    for _ in range(5):
        train(whole, weight, bias, data)
        one.grad, other.grad = weight.grad.clone(), bias.grad.clone()
        for part in parts:
            part.step()
    assert torch.equal(weight, one) and torch.equal(bias, other)


@each_info
def test_add_param_group_after_steps(info: OptimizerInfo) -> None:
    weight, bias, data = problem()
    optimizer = build(info, [weight], lr=0.01)
    train(optimizer, weight, bias, data, steps=2)
    optimizer.add_param_group({"params": bias, "lr": 0.02})
    before = bias.detach().clone()
    train(optimizer, weight, bias, data)
    assert not torch.equal(bias, before)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    assert {*optimizer.param_groups[0]} == {*optimizer.param_groups[1]}


@each_info
def test_what_parameters_may_be(info: OptimizerInfo) -> None:
    """Generators, groups with generators and single tensors are taken; sets and non-leaves are not."""
    params = [Parameter(torch.ones(2)), Parameter(torch.ones(3))]
    assert build(info, (p for p in params)).param_groups[0]["params"] == params
    groups = build(info, [{"params": (p for p in params)}]).param_groups
    assert groups[0]["params"] == params
    assert build(info, [{"params": params[0]}]).param_groups[0]["params"] == params[:1]
    with pytest.raises(ValueError, match="empty parameter list"):
        build(info, [])
    with pytest.raises(TypeError, match="ordered collections"):
        build(info, [{"params": set(params)}])
    with pytest.raises(ValueError, match="non-leaf"):
        build(info, [params[0] * 2])
    with pytest.raises(TypeError, match="only optimize Tensors"):
        build(info, ["weight"])


@each_info
def test_named_parameters(info: OptimizerInfo) -> None:
    """Names are kept in the groups, in order, also of groups added later; numbers are those without names."""
    nets = [Linear(5, 3), Linear(5, 3)]
    nets[1].load_state_dict(nets[0].state_dict())
    named = build(info, nets[0].named_parameters(), lr=0.01)
    plain = build(info, nets[1].parameters(), lr=0.01)
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]
    assert "param_names" not in plain.param_groups[0]
    for net, optimizer in zip(nets, (named, plain), strict=True):
        for _ in range(2):
            net(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(tensors_of(named), tensors_of(plain))
    named.add_param_group({"params": [("extra", Parameter(torch.ones(2)))]})
    assert named.param_groups[1]["param_names"] == ["extra"]
    with pytest.raises(ValueError, match="with/without names"):
        named.add_param_group({"params": [Parameter(torch.ones(2))]})


@each_info
def test_printing(info: OptimizerInfo) -> None:
    """Every option of every group is in the text, after the backend and the type of the states."""
    for given in info.optim_inputs_func():
        optimizer = info.optim_cls([Parameter(torch.ones(2))], **deepcopy(given.kwargs))
        text = repr(optimizer)
        head = f"{info.name} (\nBackend: native (chosen for cpu)\nStates: float32\n"
        assert text.startswith(f"{head}Parameter Group 0\n")
        for name, value in optimizer.param_groups[0].items():
            assert name == "params" or f"    {name}: {value}\n" in text


@each_input
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_have_every_public_attribute_and_go_on(
    info: OptimizerInfo, given: Any, way: str
) -> None:
    weight, bias, data = problem()
    optimizer = info.optim_cls([weight, bias], **deepcopy(given.kwargs))
    train(optimizer, weight, bias, data, steps=2)
    everything = (weight, bias, optimizer)
    copies = deepcopy(everything) if way == "deepcopy" else pickle.loads(pickle.dumps(everything))
    public = [
        {name for name, value in inspect.getmembers(each) if not name.startswith("_")}
        for each in (optimizer, copies[2])
    ]
    assert public[0] == public[1]
    assert copies[2].param_groups[0]["params"][0] is copies[0]
    train(optimizer, weight, bias, data, steps=3)
    train(copies[2], *copies[:2], data, steps=3)
    assert_same(tensors_of(copies[2]), tensors_of(optimizer))


@each_info
def test_defaults_of_the_class_are_those_of_the_groups(info: OptimizerInfo) -> None:
    optimizer = build(info, [Parameter(torch.ones(2))])
    assert optimizer.defaults == {
        k: v for k, v in optimizer.param_groups[0].items() if k != "params"
    }


@each_info
def test_duplicates_within_a_group_are_warned_of_only(info: OptimizerInfo) -> None:
    """Torch warns and takes the parameter twice."""
    param = Parameter(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.optim.SGD([param, param], lr=0.1)
        ours = build(info, [param, param])
    assert len(ours.param_groups[0]["params"]) == len(theirs.param_groups[0]["params"])
