"""The small models: whole ones, so that a training iteration can be timed beside the step alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional

from ingot.cli.bench.shapes import Shape, ShapeList, lora, small


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with tanh between them: no unit dies, so no state decays into slow subnormal numbers."""
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class ActorCritic(nn.Module):
    """Two networks of the same observations: six actions, and a value in the last column."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(17, 64, 64, 6), mlp(17, 64, 64, 1)

    def forward(self, observations: Tensor) -> Tensor:
        """Logits of the actions beside the value."""
        return torch.cat([self.actor(observations), self.critic(observations)], 1)


def cnn() -> nn.Sequential:
    """Six convolutions with batch norm, then a linear layer."""
    layers: list[nn.Module] = []
    widths = (3, 16, 16, 32, 32, 64, 64)
    for place, (into, out) in enumerate(pairwise(widths)):
        stride = 1 if place % 2 == 0 else 2
        layers.append(nn.Conv2d(into, out, 3, stride=stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Four layers of width 128 over 64 characters out of 65."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(65, 128)
        self.places = Parameter(torch.zeros(64, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 65)

    def forward(self, characters: Tensor) -> Tensor:
        """Logits of every place: [batch * 64, 65]."""
        hidden: Tensor = self.layers(self.tokens(characters) + self.places)
        logits: Tensor = self.head(hidden)
        return logits.flatten(0, 1)


class Adapters(nn.Module):
    """Pairs of narrow matrices, each added to what comes in; the frozen weights beside them are left out."""

    def __init__(self, shapes: list[Shape]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        for weight in self.weights:
            nn.init.normal_(weight, std=0.02)

    def forward(self, hidden: Tensor) -> Tensor:
        """A norm before every pair keeps the sum in bounds, however many pairs there are."""
        width = hidden.shape[-1]
        weights = iter(self.weights)
        for down, up in zip(weights, weights, strict=True):
            inner = functional.linear(functional.layer_norm(hidden, (width,)), down)
            hidden = hidden + inner @ (up if up.shape[-1] == width else up.T)
        return hidden


def classify(output: Tensor, target: Tensor) -> Tensor:
    """The usual loss of a classifier."""
    return functional.cross_entropy(output, target.flatten())


def act_and_value(output: Tensor, target: Tensor) -> Tensor:
    """Actions and returns, as after a rollout; the value is the last column."""
    policy = functional.cross_entropy(output[:, :-1], target)
    return policy + 0.5 * functional.mse_loss(output[:, -1], target.to(output.dtype) / 6)


def approach(output: Tensor, target: Tensor) -> Tensor:
    """The mean square distance to numbers."""
    return functional.mse_loss(output, target)


@dataclass(frozen=True)
class Model:
    """A model with the data of one iteration.

    Attributes:
        key: what ``--lists`` takes.
        title: what tables and pictures print.
        build: makes the model.
        inputs: shape of the inputs.
        target: shape of the targets.
        classes: how many classes the targets are drawn from; 0 for normally distributed numbers.
        loss: of the output and the targets.
        vocabulary: the same as ``classes`` for the inputs.
    """

    key: str
    title: str
    build: Callable[[], nn.Module]
    inputs: Shape
    target: Shape
    classes: int
    loss: Callable[[Tensor, Tensor], Tensor] = classify
    vocabulary: int = 0

    @property
    def shapes(self) -> ShapeList:
        """The shapes of its parameters."""
        with torch.device("meta"):
            found = [tuple(param.shape) for param in self.build().parameters()]
        return ShapeList(self.key, self.title, lambda: iter(found))


LISTS = {
    model.key: model
    for model in (
        Model("mlp", "MLP, 6 tensors", lambda: mlp(8, 64, 64, 4), (64, 8), (64,), 4),
        Model(
            "actor-critic",
            "actor-critic, 12 tensors",
            ActorCritic,
            (64, 17),
            (64,),
            6,
            act_and_value,
        ),
        Model(
            "tabular",
            "tabular, 10 tensors",
            lambda: mlp(54, 256, 256, 256, 256, 7),
            (256, 54),
            (256,),
            7,
        ),
        Model("cnn", "CNN, 20 tensors", cnn, (16, 3, 16, 16), (16,), 10),
        Model(
            "transformer", "transformer, 4 layers", Transformer, (8, 64), (8, 64), 65, vocabulary=65
        ),
        Model(
            "lora",
            "LoRA, 256 tensors",
            lambda: Adapters([*lora()]),
            (16, 4096),
            (16, 4096),
            0,
            approach,
        ),
        Model(
            "small",
            "1000 x (16, 64)",
            lambda: Adapters([*small()]),
            (16, 64),
            (16, 64),
            0,
            approach,
        ),
    )
}
QUICK = ("mlp", "actor-critic", "cnn")


class Training:
    """A model that all who take part train in turns, always on the same batch."""

    def __init__(self, model: Model) -> None:
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.module = model.build()
        self._loss = model.loss

        def draw(shape: Shape, classes: int) -> Tensor:
            if classes:
                return torch.randint(classes, shape, generator=generator)
            return torch.randn(shape, generator=generator)

        self.inputs = draw(model.inputs, model.vocabulary)
        self.target = draw(model.target, model.classes)
        self.params = list(self.module.parameters())

    def loss(self) -> Tensor:
        """The forward pass."""
        return self._loss(self.module(self.inputs), self.target)

    def zero_grad(self) -> None:
        """Drop the gradients, as ``zero_grad`` of an optimizer does."""
        for param in self.params:
            param.grad = None

    def iterate(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """A whole iteration with an optimizer."""

        def iteration() -> None:
            optimizer.zero_grad()
            self.loss().backward()
            optimizer.step()

        return iteration

    def iterate_without_step(self) -> None:
        """An iteration whose optimizer costs nothing."""
        self.zero_grad()
        self.loss().backward()
