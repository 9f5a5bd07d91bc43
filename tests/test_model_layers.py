"""Which layers ``ingot.param_groups(layer_decay=...)`` sees in models of several builds."""

import re
import warnings
from collections.abc import Callable

import pytest
from torch import nn

import ingot


def convolutions(width: int, count: int = 2) -> nn.Sequential:
    return nn.Sequential(*(nn.Conv2d(width, width, 3) for _ in range(count)))


class ResNet(nn.Module):
    """Stages of growing width side by side: the last one alone holds over half of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1, self.layer2 = convolutions(4), convolutions(8)
        self.layer3, self.layer4 = convolutions(16), convolutions(32)
        self.fc = nn.Linear(32, 2)


class Middle(nn.Module):
    """No stage holds half; together they do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.stage_a1, self.stage_a2 = convolutions(8), convolutions(8)
        self.stage_a3 = convolutions(8, 1)  # one entry is a stage, too
        self.head = nn.Linear(8, 2)


class Transformer(nn.Module):
    """A stack with containers around it, as ViT has them: a patch embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(nn.Linear(4, 8).weight.detach())
        self.patch = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)) for _ in range(4)
        )
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))


class Translator(nn.Module):
    """Two stacks: only one can be the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.decoder = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))


def depths(model: nn.Module) -> dict[str, int]:
    """The layer of each part of a model, counted from the input, told by the rates."""
    groups = ingot.param_groups(model, 0.0, 0.5, lr=1.0)
    rates = sorted({group["lr"] for group in groups})
    return {
        name.rpartition(".")[0]: rates.index(group["lr"])
        for group in groups
        for name in group["param_names"]
    }


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.ModuleDict({"m": model})])
def test_stages_side_by_side_are_layers(wrap: Callable[[nn.Module], nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name.removeprefix("m."): depth for name, depth in depths(wrap(ResNet())).items()}
    stages = {f"layer{k}.{entry}": k for k in (1, 2, 3, 4) for entry in (0, 1)}
    assert found == {"conv1": 0, "bn1": 0, **stages, "fc": 5}


def test_stages_of_which_none_holds_half_are_layers() -> None:
    found = depths(Middle())
    assert found["stem"] == 0 and found["head"] == 4
    assert [found[f"stage_a{k}.0"] for k in (1, 2, 3)] == [1, 2, 3]


def test_containers_around_a_stack_are_no_layers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = depths(Transformer())
    assert found["patch.0"] == found["patch.1"] == 0
    assert [found[f"blocks.{k}.1"] for k in range(4)] == [1, 2, 3, 4]
    assert found["head.0"] == found["head.1"] == 5


def test_a_large_container_outside_of_the_layers_is_named() -> None:
    with pytest.warns(UserWarning) as caught:
        found = depths(Translator())
    (warning,) = caught
    text = (
        "the layers of Translator are encoder.0 to encoder.3.*count decoder .43% of the parameters"
    )
    assert warning.filename == __file__
    assert re.search(text, str(warning.message))
    assert {found[f"decoder.{k}"] for k in range(3)} == {4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ingot.param_groups(Translator(), 0.0, 0.5, lr=1.0, layers=lambda name: 0)
        ingot.param_groups(Translator(), 0.0)
