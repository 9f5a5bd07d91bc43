"""The lines of a kernel that handle one tile of elements: load, advance the states, find the update, store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from ingot.declare.formula import Formula
from ingot.declare.source import Declared
from ingot.declare.spec import Variant
from ingot.declare.targets import Triton
from ingot.storage.blockwise8 import BLOCK, SCALE, SIGNED, UNSIGNED

At = Callable[[str], str]  # the addresses of an operand's elements, as an expression

CODES = {"int8": SIGNED, "uint8": UNSIGNED}  # the types of states kept in blocks
# Names that mean something in a kernel. Those of the operands are added to them.
KERNEL_NAMES = frozenset(
    """
    tl table sizes items tensors places seed grad_scale lengths values width factors lines first_rows roots
    item t row piece out line kind length start count begin i mask blocks begun rows columns wide
    update keep rate scores score
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Types:
    """How the numbers of a bucket are stored; the names are those of torch and of Triton.

    Attributes:
        param: of the parameter.
        grad: of the gradient.
        states: of every state; int8 and uint8 are codes in blocks, see ``ingot.storage.blockwise8``.
        master: whether there is a float32 copy of the parameter.
        stochastic: whether numbers of 16 and 8 bits are rounded stochastically.
    """

    param: str = "float32"
    grad: str = "float32"
    states: tuple[str, ...] = ()
    master: bool = False
    stochastic: bool = False

    @classmethod
    def of(
        cls, variant: Variant, param: str, grad: str, state: str, master: bool, stochastic: bool
    ) -> Types:
        """With all states of one type, or of ``"8bit"``: signed and unsigned codes."""
        signed = [variant.spec.states[name].signed for name in variant.states]
        codes = ["int8" if each else "uint8" for each in signed]
        states = codes if state == "8bit" else [state] * len(signed)
        return cls(param, grad, tuple(states), master, stochastic)

    @property
    def in_blocks(self) -> bool:
        """Whether the states are codes in blocks: those of one parameter all are, or none."""
        return any(kind in CODES for kind in self.states)

    @property
    def rounds_param(self) -> bool:
        """Whether the parameter itself is rounded stochastically; the master copy keeps all digits."""
        return self.stochastic and not self.master and self.param != "float32"


class Tile:
    """The lines for one tile, the same wherever they stand in a kernel."""

    def __init__(self, formula: Formula, types: Types) -> None:
        self.formula, self.types = formula, types
        self.operands = {"param": types.param, "grad": types.grad}
        for name, kind in self._states():
            self.operands[name] = kind
            if kind in CODES:
                self.operands[name + SCALE] = "float32"
        self.scales = {name + SCALE for name, kind in self._states() if kind in CODES}
        if types.master:
            self.operands["master"] = "float32"
        self.taken = KERNEL_NAMES | set(self.operands)

    def addresses(self) -> Iterator[str]:
        """Where element ``start`` of every operand is, from the table of addresses; of scales, the first."""
        for number, (name, kind) in enumerate(self.operands.items()):
            row = f"table + {number} * tensors + t"
            moved = "" if name in self.scales else " + start"
            yield f"{name}_at = tl.load({row}).to(tl.pointer_type(tl.{kind})){moved}"
        if self.types.rounds_param:
            yield self._key("param", 0)
        for number, (name, kind) in enumerate(self._states(), 1):
            if self.types.stochastic and kind != "float32":
                yield self._key(name, number)

    def load(self, at: At, wanted: Set[str] | None = None) -> Iterator[str]:
        """The operands, or those wanted, in float32; a parameter from its master copy, unless someone changed it."""
        names = {*self.operands} if wanted is None else {*wanted}
        names |= {"master"} if self.types.master and "param" in names else set()
        for name, kind in self.operands.items():
            if name not in names or name in self.scales:
                continue
            if kind in CODES:
                place = f"{name + SCALE}_at + ((start + i) >> {BLOCK.bit_length() - 1})"
                yield f"{name + SCALE} = tl.load({place}, mask, other=0.0)"
                yield f"{name} = tl.load({at(name)}, mask, other=0)"
                yield f"{name} = decode_{kind}({name}, {name + SCALE})"
                continue
            wide = "" if kind == "float32" else ".to(tl.float32)"
            yield f"{name} = tl.load({at(name)}, mask, other=0.0){wide}"
        if "master" in names:
            yield f"param = tl.where({self._nearest('param', 'master')} == param, master, param)"
        if "grad" in names:
            yield "grad = grad * grad_scale"

    def updated(self, at: At, also: Set[str] = frozenset()) -> Iterator[str]:
        """The update from the states as they are stored, and the operands for it; with others if wanted."""
        yield from self.load(
            at, self.formula.direction(Triton(), "update").names | {"param"} | also
        )
        yield from self.direction()

    def advance(self, at: At) -> Iterator[str]:
        """Store the new states and find the update, from them as they are stored or from the old ones.

        States in blocks are stored with fewer digits than the update is made from.
        """
        looks_back = self.formula.optimizer.looks_back
        if looks_back:
            yield from self.direction()
        yield from self.new_states(at)
        if not looks_back:
            yield from self.direction()

    def new_states(self, at: At) -> Iterator[str]:
        """Find and store the new states; blocks need all of their elements in the tile."""
        if self.formula.states:
            results = {name: f"new_{name}" for name in self.formula.states}
            yield origin(self.formula.optimizer.advance)
            yield from self.formula.advance(Triton("new_", self.taken), results).lines
        if self.types.in_blocks:
            yield f"blocks = tl.arange(0, BLOCK // {BLOCK})"
            yield f"begun = begin + blocks * {BLOCK} < count"
            yield f"blocks += (start + begin) // {BLOCK}"
        for name, kind in self._states():
            if kind in CODES:
                yield from self._store_codes(at, name, kind)
                continue
            rounded = self._rounded(name, f"new_{name}", kind, self.types.stochastic)
            yield f"{name} = {rounded}"
            yield self._store(at, name)

    def _store_codes(self, at: At, name: str, kind: str) -> Iterator[str]:
        """Codes and scales of a state.

        The new scale of a block is found by a reduction over all of its elements, so that every thread has read the old
        one, which it decodes with, before the new one is stored.
        """
        yield f"{name} = new_{name}"
        coded, peak = name, CODES[kind].peak
        if not CODES[kind].signed:
            coded = f"root_{name}"
            yield f"{coded} = tl.sqrt_rn({name})"
        yield f"{name}_largest = largest_of_blocks({coded}, mask, BLOCK)"
        scale = f"block_scale({name}_largest, {peak})"
        yield f"tl.store({name + SCALE}_at + blocks, {scale}, begun)"
        yield f"{name}_inverse = block_inverse({name}_largest, {peak}, BLOCK)"
        codes = f"encode_{kind}({coded}, {name}_inverse)"
        if self.types.stochastic:
            bits = f"random_bits(start + i, {name}_key)"
            codes = f"stochastic_{kind}({coded}, {name}_inverse, {bits})"
        yield f"tl.store({at(name)}, {codes}, mask)"

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


def numbers(formula: Formula, loaded: frozenset[str]) -> Iterator[str]:
    """Read the scalars that the device made; the others are arguments by value."""
    named = [f"s_{name}" for name in formula.optimizer.scalars if name in loaded]
    return (f"{name} = tl.load({name})" for name in named)


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
