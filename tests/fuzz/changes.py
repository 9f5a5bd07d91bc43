"""What happens in a scenario between its steps: everything that a script may do."""

from __future__ import annotations

from typing import Any

from cases import BACKENDS
from fuzz.generate import CODED, Generator
from fuzz.sources import Operation
from fuzz.steps import COMPLEX, HALVES, Steps

SWITCHES = ("amsgrad", "nesterov", "adam", "bias_correction", "centered")


class Changes(Steps):
    """Draws what happens between steps."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator)
        kinds = {
            "add_group": 1.0,
            "save": 1.0,
            "load": 1.0,
            "rebuild": 1.0,
            "deepcopy": 0.7,
            "pickle": 0.7,
            "move": 1.5,
            "cast": 1.0,
            "resize": 1.0,
            "replace": 1.0,
            "regroup": 1.0,
            "clear": 1.0,
            "share": 1.0,
            "option": 2.0,
            "backend": 1.0,
            "guard_states": 1.0,
            "threads": 0.3,
            "zero_grad": 0.5,
            "clip": 1.0,
            "refuse": 1.0,
        }
        self.kinds, self.weights = list(kinds), list(kinds.values())

    def some(self) -> list[Operation]:
        """None, one or several changes between two steps."""
        count = self.g.one([0, 0, 1, 1, 2, 3])
        drawn = self.g.random.choices(self.kinds, self.weights, k=count)
        if self.g.force == "shared two-pass":
            drawn.append("share")
        operations: list[Operation] = []
        for name in drawn:
            made = getattr(self, name)() or []
            operations += made if isinstance(made, list) else [made]
        return operations

    def lonely(self) -> int | None:
        """A parameter whose memory is its own."""
        params = [k for k in self.params() if k not in self.shared]
        return self.g.one(params) if params else None

    def add_group(self) -> Operation:
        self.g.saved = None
        return {"do": "add_group", "group": self.g.group()}

    def save(self) -> Operation:
        self.g.saved = [list(group) for group in self.g.groups]
        return {"do": "save"}

    def load(self) -> Operation | None:
        """An earlier state; possible while the same parameters have the same shapes in the same groups."""
        return {"do": "load"} if self.g.saved == self.g.groups else None

    def rebuild(self) -> Operation | None:
        """An optimizer that knows nothing, and takes the state over."""
        if not all(self.g.groups):
            return None  # torch refuses to begin with an empty group of named parameters
        self.g.saved = None
        return {
            "do": "rebuild",
            "groups": [list(group) for group in self.g.groups],
            "backend": self.g.one([None, *BACKENDS]),
        }

    def deepcopy(self) -> Operation | None:
        return None if self.shared else {"do": "deepcopy"}

    def pickle(self) -> Operation | None:
        return None if self.shared else {"do": "pickle"}

    def move(self) -> Operation | None:
        k = self.lonely()
        if k is None:
            return None
        return {"do": "move", "param": k, "layout": self.g.layout(self.g.now[k]["shape"])}

    def cast(self) -> Operation | None:
        """Another type; among those that the optimizer can keep."""
        k = self.lonely()
        if k is None:
            return None
        old = self.g.now[k]["dtype"]
        if old in COMPLEX:
            dtypes = list(COMPLEX)
        elif self.g.narrow:
            dtypes = ["torch.float32", *HALVES]
        else:
            dtypes = ["torch.float32", "torch.float64", *HALVES]
        self.g.now[k]["dtype"] = self.g.one(dtypes)
        self.g.saved = None
        return {"do": "cast", "param": k, "dtype": self.g.now[k]["dtype"]}

    def resize(self) -> Operation | None:
        k = self.lonely()
        if k is None:
            return None
        self.g.coded |= self.g.eight and self.g.now[k]["shape"] in CODED
        spec = self.g.tensor(self.g.shape(), self.g.now[k]["dtype"])
        self.g.now[k] = dict(spec)
        self.g.saved = None
        return {"do": "resize", "param": k, "tensor": spec}

    def replace(self) -> Operation | None:
        k = self.lonely()
        if k is None:
            return None
        return {"do": "replace", "param": k, "keep": self.g.chance(0.6)}

    def regroup(self) -> Operation | None:
        """From one group to another; names would have to move along."""
        full = [i for i, group in enumerate(self.g.groups) if len(group) > 1]
        if len(self.g.groups) < 2 or not full or self.g.named:
            return None
        source = self.g.one(full)
        target = self.g.one(i for i in range(len(self.g.groups)) if i != source)
        k = self.g.one(self.g.groups[source])
        self.g.groups[source].remove(k)
        self.g.groups[target].append(k)
        return {"do": "regroup", "param": k, "from": source, "to": target}

    def clear(self) -> Operation:
        return {"do": "clear", "param": self.g.one([None, *self.params()])}

    def share(self) -> list[Operation]:
        """Two parameters become parts of one memory; the second one is given the shape of the first before."""
        g = self.g
        if g.kind in ("NpuFusedLamb", "NpuFusedAdamP") and not g.wanted("shared two-pass", 0.7):
            return []
        wide = [k for k in self.params() if g.now[k]["dtype"] in ("torch.float32", "torch.float64")]
        pairs = [
            (a, b)
            for a in wide
            for b in wide
            if a < b and g.now[a]["dtype"] == g.now[b]["dtype"] and not {a, b} & self.shared
        ]
        pairs = [(a, b) for a, b in pairs if g.now[a]["shape"]]
        if not pairs:
            return []
        a, b = g.one(pairs)
        shape, dtype, operations = g.now[a]["shape"], g.now[a]["dtype"], []
        if g.now[b]["shape"] != shape:
            spec = g.tensor(list(shape), dtype)
            g.now[b], g.saved = dict(spec), None
            operations.append({"do": "resize", "param": b, "tensor": spec})
        self.shared |= {a, b}
        shared = {"do": "share", "param": a, "other": b, "tensor": g.tensor(shape, dtype)}
        return [*operations, {**shared, "offset": g.one([0, 1]) if shape[0] > 0 else 0}]

    def option(self) -> Operation:
        """Another rate, decay or direction; or a flag switched, for which a state may be missing."""
        group = self.g.random.randrange(len(self.g.groups))
        names: dict[str, list[Any]] = {
            "lr": [0.0, 0.05, "torch.tensor(0.01)"],
            "maximize": [True, False],
        }
        known = self.g.known_options()
        names |= {n: v for n, v in known.items() if n in ("weight_decay", *SWITCHES)}
        if self.g.kind == "NpuFusedSGD":
            names.pop("nesterov", None)
        name = self.g.one(names)
        return {"do": "option", "group": group, "name": name, "value": self.g.one(names[name])}

    def backend(self) -> Operation:
        return {"do": "backend", "backend": self.g.one([None, *BACKENDS])}

    def guard_states(self) -> Operation:
        return {"do": "guard_states", "layout": self.g.one(["dense", "permuted", "gaps"])}

    def threads(self) -> Operation:
        return {"do": "threads", "threads": self.g.one([1, 2, 3])}

    def zero_grad(self) -> Operation:
        grads = self.gradients(plain=True)
        return {"do": "zero_grad", "grads": grads, "set_to_none": self.g.chance(0.5)}

    def clip(self) -> Operation:
        return {
            "do": "clip",
            "grads": self.gradients(plain=True),
            "max_norm": self.g.one([0.1, 3.0, 1000.0]),
            "norm_type": self.g.one([2.0, 2.0, "torch.inf"]),
        }

    def refuse(self) -> Operation | None:
        """A step that must fail and change nothing."""
        k = self.lonely()
        trouble = self.g.one(["sparse", "option", "expanded"])
        if k is None or self.g.now[k]["dtype"] not in ("torch.float32", "torch.float64"):
            return None
        if trouble == "expanded" and not any(size > 1 for size in self.g.now[k]["shape"]):
            return None
        if trouble == "expanded" and 0 in self.g.now[k]["shape"]:
            return None
        if trouble == "option" and "nonsense options" in self.g.avoid:
            return None
        grads = {
            **self.gradients(),
            k: self.g.tensor(self.g.now[k]["shape"], self.g.now[k]["dtype"]),
        }
        return {"do": "refuse", "param": k, "trouble": trouble, "grads": grads}
