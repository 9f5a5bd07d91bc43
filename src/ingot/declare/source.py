"""What the files of src/ingot/optim declare, read with ast: they are not imported, so no torch is needed."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ingot.declare.language import refuse
from ingot.declare.sums import SUMS

PACKAGE = "ingot.optim."
SPEC_ARGUMENTS = ("name", "states", "scalars", "advance", "direction", "finish", "score")


@dataclass(frozen=True)
class Declared:
    """A definition and the file it stands in: its own, or the one it was imported from."""

    path: Path
    node: ast.AST

    @property
    def function(self) -> ast.FunctionDef:
        """The definition, which must be a function."""
        if not isinstance(self.node, ast.FunctionDef):
            raise refuse(self.path, self.node, "expected a function")
        return self.node


class DeclaredState(NamedTuple):
    """What the core needs of a ``State(...)``."""

    flag: str | None  # the option that switches it on
    signed: bool


class Module:
    """One file of declared math: what it defines and what it imports from its neighbours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        self.defined: dict[str, Declared] = {}
        for node in self.tree.body:
            match node:
                case ast.ImportFrom(module=str() as module) if module.startswith(PACKAGE):
                    neighbour = Module(path.with_name(module.removeprefix(PACKAGE) + ".py"))
                    for alias in node.names:
                        if alias.name not in neighbour.defined:
                            raise refuse(path, node, f"{neighbour.path.name} has no {alias.name}")
                        self.defined[alias.asname or alias.name] = neighbour.defined[alias.name]
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    self.defined[name] = Declared(path, node)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.defined[name] = Declared(path, value)

    def find(self, node: ast.AST) -> Declared:
        """What a name stands for."""
        if not isinstance(node, ast.Name) or node.id not in self.defined:
            raise refuse(
                self.path, node, "expected a name defined in this file or imported from a neighbour"
            )
        return self.defined[node.id]

    def states(self, declared: Declared) -> dict[str, DeclaredState]:
        """A dictionary display of names and ``State(...)``, ``**other`` included."""
        if isinstance(declared.node, ast.Name):
            return self.states(Module(declared.path).find(declared.node))
        if not isinstance(declared.node, ast.Dict):
            raise refuse(declared.path, declared.node, "expected a dictionary of state names")
        result: dict[str, DeclaredState] = {}
        for key, value in zip(declared.node.keys, declared.node.values, strict=True):
            if key is None:
                result |= self.states(Declared(declared.path, value))
            else:
                result[ast.literal_eval(key)] = self._state_of(declared.path, value)
        return result

    @staticmethod
    def _state_of(path: Path, node: ast.expr) -> DeclaredState:
        """One state. How it starts is not the core's business: it gets the tensors."""
        match node:
            case ast.Call(func=ast.Name(id="State"), args=arguments, keywords=keywords):
                given = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg}
                flag = ast.literal_eval(arguments[0]) if arguments else given.get("flag")
                return DeclaredState(flag, given.get("signed", True))
        raise refuse(path, node, "expected State(...)")


@dataclass(frozen=True)
class Optimizer:
    """The parts of a ``Spec(...)`` call that the native core needs."""

    name: str
    states: Mapping[str, str | None]  # names, each with the flag that switches it on
    unsigned: frozenset[str]  # those that are never negative
    scalars: Sequence[str]
    advance: Declared
    direction: Declared
    finish: Declared | None
    score: Declared | None
    sums: Sequence[str]
    rows: bool
    looks_back: bool
    options: frozenset[str]  # a flag that is no option of the class is always off

    def variants(self) -> Iterator[dict[str, bool]]:
        """Every combination of flags, each a variant."""
        functions = [f for f in (self.advance, self.direction, self.finish) if f is not None]
        flags = sorted({a.arg for f in functions for a in f.function.args.kwonlyargs})
        values = [(False, True) if flag in self.options else (False,) for flag in flags]
        for combination in itertools.product(*values):
            yield dict(zip(flags, combination, strict=True))


def find_optimizer(module: Module) -> Optimizer | None:
    """The optimizer a file declares, if it declares one."""
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        body = {
            target.id: item.value
            for item in node.body
            if isinstance(item, ast.Assign)
            for target in item.targets
            if isinstance(target, ast.Name)
        }
        call = body.get("spec")
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "Spec"
        ):
            rules = body.get("rules")
            keys = rules.keys if isinstance(rules, ast.Dict) else []
            options = frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
            return read_spec(module, call, options)
    return None


def fields(declared: Declared) -> list[str]:
    """The fields of a NamedTuple, in order."""
    if not isinstance(declared.node, ast.ClassDef):
        raise refuse(declared.path, declared.node, "expected a NamedTuple")
    targets = [item.target for item in declared.node.body if isinstance(item, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def read_spec(module: Module, call: ast.Call, options: frozenset[str]) -> Optimizer:
    """The arguments of a ``Spec(...)`` call, names resolved."""
    given: dict[str, ast.expr] = dict(zip(SPEC_ARGUMENTS, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    scalars = module.find(ast.Name("Scalars", lineno=call.lineno))
    names = fields(scalars)
    if "finish" not in given and not {"keep", "rate"} <= {*names}:
        raise refuse(scalars.path, scalars.node, "without finish, keep and rate must be among them")
    looks_back = "looks_back" in given and ast.literal_eval(given["looks_back"])
    if looks_back and "finish" in given:
        raise refuse(module.path, given["looks_back"], "looks_back and finish exclude each other")
    states = given["states"]
    sums = ast.literal_eval(given["sums"]) if "sums" in given else ()
    if list(sums) != [name for name in SUMS if name in sums]:
        raise refuse(module.path, given["sums"], f"sums must be among {[*SUMS]}, in this order")
    is_name = isinstance(states, ast.Name)
    kept = module.states(module.find(states) if is_name else Declared(module.path, states))
    return Optimizer(
        name=ast.literal_eval(given["name"]),
        states={name: state.flag for name, state in kept.items()},
        unsigned=frozenset(name for name, state in kept.items() if not state.signed),
        scalars=names,
        advance=module.find(given["advance"]),
        direction=module.find(given["direction"]),
        finish=module.find(given["finish"]) if "finish" in given else None,
        score=module.find(given["score"]) if "score" in given else None,
        sums=sums,
        rows=ast.literal_eval(given["rows"]) if "rows" in given else False,
        looks_back=looks_back,
        options=options,
    )
