"""The steps of a scenario and the gradients they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuzz.sources import Operation

if TYPE_CHECKING:
    from fuzz.generate import Generator

COMPLEX = ("torch.complex64", "torch.complex128")
HALVES = ("torch.bfloat16", "torch.float16")


class Steps:
    """Draws steps; ``g`` knows the parameters as they are at this point of the scenario."""

    def __init__(self, generator: Generator) -> None:
        self.g = generator
        self.shared: set[int] = set()

    def params(self) -> list[int]:
        return [k for group in self.g.groups for k in group]

    def gradients(self, plain: bool = False) -> dict[int, Any]:
        """A gradient, or none, for every parameter."""
        return {k: self.gradient(k, plain) for k in self.params()}

    def gradient(self, k: int, plain: bool) -> dict[str, Any] | None:
        """Of the type of the parameter or another, in any layout, lazily conjugated or negated."""
        g, now = self.g, self.g.now[k]
        if g.chance(0.15):
            return None
        shape, dtype = now["shape"], now["dtype"]
        spec = g.tensor(shape, dtype)
        if plain:
            return {**spec, "layout": "dense"}
        square = len(shape) == 2 and shape[0] == shape[1] and k not in self.shared
        if square and g.wanted("gradient views its parameter", 0.05):
            return {**spec, "layout": "itself transposed"}
        if dtype not in COMPLEX and g.chance(0.1) and g.kind != "NpuFusedBertAdam":
            spec["dtype"] = "torch.float32" if dtype in HALVES else dtype
        if shape and shape[0] > 0 and g.chance(0.1):
            spec["layout"] = "expanded"
        if g.chance(0.05):
            spec["lazy"] = "conj" if dtype in COMPLEX else "neg"
        return spec

    def step(self) -> Operation:
        """A step; now and then with a closure, or through a GradScaler, which may find an overflow."""
        g = self.g
        operation: Operation = {"do": "step", "grads": self.gradients()}
        scalable = not any(self.g.now[k]["dtype"] in COMPLEX for k in self.params())
        if scalable and g.chance(0.1):  # torch's GradScaler does not know complex gradients
            plain = self.gradients(plain=True)
            operation |= {"grads": plain, "scale": g.one([4.0, 1024.0, 3.0])}
            if g.chance(0.3):
                operation["overflow"] = g.one(self.params())
        elif g.chance(0.1):
            operation["closure"] = True
        return operation
