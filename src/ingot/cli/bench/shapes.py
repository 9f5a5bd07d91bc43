"""The shape lists that are timed: three models people train and one list that is all overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeList:
    """The parameter shapes of one model.

    Attributes:
        key: what ``--shapes`` takes.
        title: what tables and pictures print.
        make: yields the shapes in the order of the model's parameters.
    """

    key: str
    title: str
    make: Callable[[], Iterator[Shape]]

    def shapes(self) -> list[Shape]:
        """The shapes, in the order of the model's parameters."""
        return list(self.make())

    @property
    def tensors(self) -> int:
        """How many tensors there are."""
        return len(self.shapes())

    @property
    def parameters(self) -> int:
        """How many elements there are in all tensors together."""
        return sum(prod(shape) for shape in self.shapes())


def bert_base() -> Iterator[Shape]:
    """BERT-base, uncased, with its pooler."""
    width, inner = 768, 3072
    yield from [(30522, width), (512, width), (2, width), (width,), (width,)]
    for _ in range(12):
        for _ in range(4):  # query, key, value, output
            yield from [(width, width), (width,)]
        yield from [(width,), (width,)]
        yield from [(inner, width), (inner,), (width, inner), (width,)]
        yield from [(width,), (width,)]
    yield from [(width, width), (width,)]


def resnet50() -> Iterator[Shape]:
    """ResNet-50 with 1000 classes."""

    def convolution(out: int, into: int, size: int) -> list[Shape]:
        return [(out, into, size, size), (out,), (out,)]  # the weight, then its batch norm

    yield from convolution(64, 3, 7)
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            yield from convolution(width, channels, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, channels, 1)
            channels = 4 * width
    yield from [(1000, channels), (1000,)]


def lora() -> Iterator[Shape]:
    """Rank-8 adapters on the four attention projections of 32 layers of width 4096."""
    for _ in range(32 * 4):
        yield from [(8, 4096), (4096, 8)]


def small() -> Iterator[Shape]:
    """A thousand tensors of 1024 elements: what is left is the cost per tensor."""
    yield from [(16, 64)] * 1000


def tiny() -> Iterator[Shape]:
    """A handful of small tensors, to try the benchmark itself."""
    yield from [(4, 3), (5,), (3, 2, 2, 2)]


SHAPES = {
    entry.key: entry
    for entry in (
        ShapeList("bert-base", "BERT-base", bert_base),
        ShapeList("resnet-50", "ResNet-50", resnet50),
        ShapeList("lora", "LoRA r=8", lora),
        ShapeList("small", "1000 x (16, 64)", small),
        ShapeList("tiny", "tiny", tiny),
    )
}
DEFAULT = ("bert-base", "resnet-50", "lora", "small")
