"""What is found about tensors in Python, where the native core is not there: every difference, in one call."""

import pytest
import torch

from ingot.backends.native import NATIVE
from ingot.step import facts
from ingot.step.facts import find_facts


def inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


class Other(torch.Tensor):
    pass


OTHERS = {
    "class": lambda tensor: tensor.as_subclass(Other),
    "type": torch.Tensor.double,
    "shape": lambda tensor: tensor[:3].clone(),
    "strides": lambda tensor: tensor.t().contiguous().t(),
    "sign": torch._neg_view,
    "layout": torch.Tensor.to_sparse,
    "device": lambda tensor: tensor.to("meta"),
    "inference": inference,
}


def tensors():
    return [torch.ones(4, 5) for _ in range(3)]


@pytest.fixture(autouse=True)
def without_core(monkeypatch):
    monkeypatch.setattr(type(NATIVE), "unavailable", lambda self: "hidden")


def test_nothing_is_looked_at_again_while_all_is_as_it_was(monkeypatch):
    written, read = [tensors(), tensors()], tensors()
    first = find_facts(written, read)
    assert first.known is not None and not first.overlap
    monkeypatch.setattr(facts, "facts_of", None)
    assert find_facts(written, read, first) is first
    moved = find_facts(written, tensors(), first)
    assert moved.known is first.known and moved.addresses != first.addresses
    shared = [each.view(4, 5) for each in written[0]]
    assert find_facts(written, shared, first).overlap


@pytest.mark.parametrize("role", ["written", "read"])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_difference_is_seen(other, role):
    written, read = [tensors(), tensors()], tensors()
    first = find_facts(written, read)
    changed = written[1] if role == "written" else read
    changed[2] = other(changed[2])
    if other is inference and role == "read":
        assert find_facts(written, read, first).known == first.known, "it may be read"
    else:
        assert find_facts(written, read, first).known != first.known


@pytest.mark.parametrize("thing", [None, 3, "x"])
def test_what_is_no_tensor_is_seen(thing):
    written, read = [tensors(), tensors()], tensors()
    first = find_facts(written, read)
    written[1][2] = thing
    assert find_facts(written, read, first).known is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_does_not_end_the_process():
    written, read = [tensors(), tensors()], tensors()
    first = find_facts(written, read)
    written[1][2] = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
    with pytest.raises(RuntimeError, match="NestedTensorImpl"):
        find_facts(written, read, first)


def test_inference_tensors_are_seen_in_inference_mode_too():
    written, read = [tensors()], tensors()
    with torch.inference_mode():
        first = find_facts(written, read)
        assert first.guard is not None
        written[0][1] = written[0][1].clone()
        assert find_facts(written, read, first).known is None


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError])
def test_a_torch_without_the_guard_will_do(monkeypatch, error):
    class Missing:
        def __init__(self, *tensors, **sizes):
            raise error

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", Missing, raising=False)
    written, read = [tensors()], tensors()
    first = find_facts(written, read)
    assert first.known is not None and first.guard is None
    monkeypatch.setattr(facts, "any_overlap", None)
    monkeypatch.setattr(facts, "guard_of", None)
    assert find_facts(written, read, first) == first


def test_a_guard_that_sees_what_does_not_matter_is_made_again(monkeypatch):
    written, read = [tensors()], tensors()
    first = find_facts(written, read)
    read[1].requires_grad_()
    second = find_facts(written, read, first)
    assert second == first._replace(guard=second.guard) and second.guard is not first.guard
    monkeypatch.setattr(facts, "facts_of", None)
    assert find_facts(written, read, second) is second
