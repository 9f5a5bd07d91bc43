"""The lines of a kernel that handle one tile of elements: load, advance the states, find the update, store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ingot.declare.formula import Formula
from ingot.declare.source import Declared
from ingot.declare.targets import Triton

At = Callable[[str], str]  # the addresses of an operand's elements, as an expression

# Names that mean something in a kernel. Those of the operands are added to them.
KERNEL_NAMES = frozenset(
    """
    tl table sizes items tensors places seed grad_scale lengths values width factors lines first_rows roots
    item t row piece out line kind length start count begin i mask rows columns wide update keep rate scores score
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Types:
    """How the numbers of a bucket are stored; the names are those of torch and of Triton.

    Attributes:
        param: of the parameter.
        grad: of the gradient.
        states: of every state.
        master: whether there is a float32 copy of the parameter.
        stochastic: whether 16-bit numbers are rounded stochastically.
    """

    param: str = "float32"
    grad: str = "float32"
    states: tuple[str, ...] = ()
    master: bool = False
    stochastic: bool = False

    @property
    def rounds_param(self) -> bool:
        """Whether the parameter itself is rounded stochastically; the master copy keeps all digits."""
        return self.stochastic and not self.master and self.param != "float32"


class Tile:
    """The lines for one tile, the same wherever they stand in a kernel."""

    def __init__(self, formula: Formula, types: Types) -> None:
        self.formula, self.types = formula, types
        self.operands = {"param": types.param, "grad": types.grad}
        self.operands |= dict(zip(formula.states, types.states, strict=True))
        if types.master:
            self.operands["master"] = "float32"
        self.taken = KERNEL_NAMES | set(self.operands)

    def addresses(self) -> Iterator[str]:
        """Where element ``start`` of every operand is, from the table of addresses."""
        for number, (name, kind) in enumerate(self.operands.items()):
            row = f"table + {number} * tensors + t"
            yield f"{name}_at = tl.load({row}).to(tl.pointer_type(tl.{kind})) + start"
        if self.types.rounds_param:
            yield self._key("param", 0)
        for number, (name, kind) in enumerate(self._states(), 1):
            if self.types.stochastic and kind != "float32":
                yield self._key(name, number)

    def load(self, at: At, second_pass: bool = False) -> Iterator[str]:
        """The operands in float32; the parameter from its master copy, unless someone else changed it.

        The second pass loads only what its update is made of.
        """
        needed = self.formula.direction(Triton(), "update").names | {"param", "master"}
        names = [name for name in self.operands if name in needed or not second_pass]
        for name in names:
            wide = "" if self.operands[name] == "float32" else ".to(tl.float32)"
            yield f"{name} = tl.load({at(name)}, mask, other=0.0){wide}"
        if self.types.master:
            yield f"param = tl.where({self._nearest('param', 'master')} == param, master, param)"
        if "grad" in names:
            yield "grad = grad * grad_scale"

    def advance(self, at: At) -> Iterator[str]:
        """Store the new states and find the update, from them as they are stored or from the old ones."""
        looks_back = self.formula.optimizer.looks_back
        if looks_back:
            yield from self.direction()
        if self.formula.states:
            results = {name: f"new_{name}" for name in self.formula.states}
            yield origin(self.formula.optimizer.advance)
            yield from self.formula.advance(Triton("new_", self.taken), results).lines
        for name, kind in self._states():
            rounded = self._rounded(name, f"new_{name}", kind, self.types.stochastic)
            yield f"{name} = {rounded}"
            yield self._store(at, name)
        if not looks_back:
            yield from self.direction()

    def direction(self) -> Iterator[str]:
        """The update."""
        yield origin(self.formula.optimizer.direction)
        yield from self.formula.direction(Triton("own_", self.taken), "update").lines

    def apply(self, at: At, keep: str, rate: str) -> Iterator[str]:
        """The new parameter, and its master copy."""
        yield f"param = {keep} * param - {rate} * update"
        if self.types.master:
            yield f"tl.store({at('master')}, param, mask)"
        rounded = self._rounded("param", "param", self.types.param, self.types.rounds_param)
        if rounded != "param":
            yield f"param = {rounded}"
        yield self._store(at, "param")

    def _states(self) -> Iterator[tuple[str, str]]:
        return zip(self.formula.states, self.types.states, strict=True)

    def _store(self, at: At, name: str) -> str:
        kind = self.operands[name]
        narrow = "" if kind == "float32" else f".to(tl.{kind})"
        return f"tl.store({at(name)}, {name}{narrow}, mask)"

    def _rounded(self, name: str, value: str, kind: str, stochastic: bool) -> str:
        """A value as ``kind`` can hold it, in float32."""
        if kind == "float32":
            return value
        if stochastic:
            return f"stochastic_{kind}({value}, random_bits(start + i, {name}_key))"
        return f"nearest_{kind}({value})"

    def _nearest(self, name: str, value: str) -> str:
        return self._rounded(name, value, self.operands[name], False)

    @staticmethod
    def _key(name: str, operand: int) -> str:
        place = "tl.load(places + t), tl.load(places + tensors + t)"
        return f"{name}_key = tensor_key({place}, seed, {operand})"


def vectors(name: str) -> str:
    """Addresses of which the compiler may assume that vectors of them are aligned."""
    return f"tl.multiple_of({name}_at + i, 16)"


def plain(name: str) -> str:
    """Addresses of which nothing is known."""
    return f"{name}_at + i"


def origin(declared: Declared) -> str:
    """A comment that says where a function was declared."""
    return f"# {declared.function.name}() of {declared.path.name}, line {declared.function.lineno}"


def indent(lines: Sequence[str] | Iterator[str], by: int = 1) -> list[str]:
    """Lines of a block."""
    return ["    " * by + line if line else line for line in lines]


def function(name: str, arguments: Sequence[str], body: Iterable[str]) -> str:
    """The text of a function, with lines of a bearable length."""
    head, line = [f"def {name}("], "   "
    for argument in arguments:
        if len(line) + len(argument) > 96:
            head.append(line)
            line = "   "
        line += f" {argument},"
    return "\n".join([*head, line, "):", *indent([*body]), ""])
