"""A scenario from a seed: which optimizer, which tensors, which options, and what happens between the steps."""

from __future__ import annotations

import random
from typing import Any

from cases import BACKENDS
from fuzz.formulas import KINDS
from fuzz.sources import Operation, Scenario

DTYPES = ["float32"] * 5 + ["bfloat16", "float16", "float64", "float64", "complex64", "complex128"]
FILLS = ["normal"] * 6 + ["some zeros", "zeros", "tiny"]
LAYOUTS = ["dense"] * 3 + ["permuted", "gaps", "channels_last"]
DIMENSIONS = [1, 1, 2, 2, 2, 3, 4]
# Large enough for 8-bit states; most do not fill their last block of 128, and rows begin inside of blocks.
CODED = [[64, 64], [4096], [4097], [4223], [8999], [33, 128], [128, 65], [3, 1367], [1, 4099]]
CODED += [[67, 65], [2, 50, 50], [5, 7, 131], [4, 8, 11, 13], [7, 9, 8, 9]]
CODES = "8-bit codes"  # the feature that may be forced
MOMENTS = {
    "betas": [(0.9, 0.999), (0.0, 0.0), (0.5, 0.99), (0.8, 0.3)],
    "eps": [1e-8, 1e-6, 1e-3, 0.1],
}
DECAY = {"weight_decay": [0.0, 0, 0.01, 0.5]}
FLAG = [False, True]
# Options by class, with values worth trying; all classes have lr, maximize and max_grad_norm.
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "NpuFusedAdamW": {**MOMENTS, **DECAY, "amsgrad": FLAG},
    "NpuFusedAdam": {**MOMENTS, **DECAY, "amsgrad": FLAG},
    "NpuFusedSGD": {**DECAY, "momentum": [0, 0.5, 0.9], "dampening": [0, 0.3]},
    "NpuFusedLamb": {
        **MOMENTS,
        **DECAY,
        "adam": [False, False, True],
        "use_global_grad_norm": FLAG,
        "bias_correction": FLAG,
        "max_weight_norm": [10.0, 0.5, None],
    },
    "NpuFusedAdamP": {
        **MOMENTS,
        **DECAY,
        "delta": [0.1, 0.0, 0.8, 100.0],
        "wd_ratio": [0.1, 0.5, 1.0, 0.0],
        "nesterov": FLAG,
        "amsgrad": FLAG,
    },
    "NpuFusedBertAdam": {
        **DECAY,
        "b1": [0.9, 0.0, 0.5],
        "b2": [0.999, 0.3, 0.9],
        "e": [1e-6, 1e-3, 0.1],
        "warmup": [-1, 0.0, 0.3],
        "t_total": [-1, 3, 20],
        "schedule": ["warmup_linear", "warmup_constant", "warmup_cosine", "warmup_poly"],
        "amsgrad": FLAG,
        "clip_scope": ["group", "global"],
    },
    "NpuFusedAdadelta": {**DECAY, "rho": [0.9, 0.0, 0.5], "eps": [1e-6, 1e-3]},
    "NpuFusedRMSprop": {
        **DECAY,
        "alpha": [0.99, 0.5],
        "eps": [1e-6, 1e-3],
        "momentum": [0, 0.5],
        "centered": FLAG,
    },
    "NpuFusedRMSpropTF": {
        **DECAY,
        "alpha": [0.9, 0.5],
        "eps": [1e-6, 1e-3],
        "momentum": [0.0, 0.5],
        "centered": FLAG,
        "decoupled_decay": FLAG,
        "lr_in_momentum": FLAG,
    },
}


class Generator:
    """Draws one scenario. ``avoid`` names what is left out, see known_defects.py; ``force`` what must occur."""

    def __init__(self, seed: int, avoid: frozenset[str], force: str = "", kind: str = "") -> None:
        self.random = random.Random(seed)
        self.seed, self.avoid, self.force = seed, avoid, force
        # AdamP hides what LAMB shows: only some of its steps depend on a norm.
        self.kind = kind or ("NpuFusedLamb" if force == "shared two-pass" else self.one(KINDS))
        self.tensors: dict[int, dict[str, Any]] = {}
        self.now: dict[int, dict[str, Any]] = {}  # shape and dtype as they are at this point
        self.groups: list[list[int]] = []
        self.named = self.chance(0.2)
        self.saved: list[Any] | None = None

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one(self, values: Any) -> Any:
        return self.random.choice(list(values))

    def number(self) -> int:
        return self.random.randrange(1 << 30)

    def wanted(self, feature: str, probability: float) -> bool:
        """Whether something happens that may be avoided or forced."""
        if feature in self.avoid:
            return False
        return self.chance(0.7 if feature == self.force else probability)

    def shape(self) -> list[int]:
        """Around the width of SIMD registers, with empty and single dimensions; a large one now and then."""
        if self.coded and self.chance(0.6):
            self.coded = False
            return list(self.one(CODED))
        if self.chance(0.008):
            return self.one([[70001], [300, 257], [5, 4099]])
        if self.chance(0.08):
            return []
        sizes = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65]
        shape = [self.one(sizes) for _ in range(self.one(DIMENSIONS))]
        while len(shape) > 1 and len([s for s in shape if s > 4]) > 2:
            shape[self.random.randrange(len(shape))] = 2
        return shape

    def layout(self, shape: list[int], layouts: list[str] = LAYOUTS) -> str:
        layout = self.one(layouts)
        return "dense" if layout == "channels_last" and len(shape) != 4 else layout

    def tensor(self, shape: list[int], dtype: str, fills: list[str] = FILLS) -> dict[str, Any]:
        return {
            "seed": self.number(),
            "shape": shape,
            "dtype": dtype,
            "layout": self.layout(shape),
            "scale": self.one([1.0, 1.0, 0.01, 20.0]),
            "fill": self.one(fills),
        }

    def dtype(self) -> str:
        dtypes = ["float32", "bfloat16", "float16"] if self.narrow else DTYPES
        return f"torch.{self.one(dtypes)}"

    def common(self) -> dict[str, Any]:
        """The options of the whole optimizer."""
        result: dict[str, Any] = {}
        if self.chance(0.25):
            result["state_dtype"] = self.one(
                ["param", "torch.bfloat16", "torch.float32", "torch.float16", "8bit", "8bit"]
            )
        if self.force == CODES:
            result["state_dtype"] = "8bit"
        if self.chance(0.2):
            result["master_weights"] = True
        if self.chance(0.15):
            result["rounding"] = "stochastic"
        # Most runs with 8-bit states have one tensor that is large enough for them.
        self.eight = result.get("state_dtype") == "8bit"
        self.coded = self.eight and self.wanted(CODES, 0.7)
        # 8-bit and 16-bit states cannot be kept for wide and complex parameters.
        self.narrow = result.get("state_dtype", "param") != "param" or self.chance(0.1)
        return result

    def known_options(self) -> dict[str, list[Any]]:
        """What the class knows; "centered" subtracts averages, which 8 bits are documented not to serve for."""
        known = OPTIONS[self.kind]
        return {n: v for n, v in known.items() if not (self.eight and n == "centered")}

    def group_options(self) -> dict[str, Any]:
        """Some options with values worth trying."""
        options: dict[str, Any] = {"lr": self.one([1e-3, 0.01, 0.3, 0.0, "torch.tensor(0.02)"])}
        if self.wanted("tensor lr of 1 or 2 dimensions", 0.05):
            options["lr"] = self.one(["torch.tensor([0.02])", "torch.tensor([[0.02]])"])
        for name, values in self.known_options().items():
            if self.chance(0.4):
                options[name] = self.one(values)
        if self.kind == "NpuFusedSGD" and options.get("momentum") and not options.get("dampening"):
            options["nesterov"] = self.one(FLAG)
        if self.force == "shared two-pass":
            options["max_weight_norm"] = None  # a norm that is cut off does not matter
        if options.get("t_total", -1) == -1:
            options.pop("warmup", None)  # it has no effect then, which may be refused
        if self.chance(0.2):
            options["maximize"] = True
        if self.chance(0.25):
            limits = [0.5, 20.0, 1e-3] + ([-1] if self.kind == "NpuFusedBertAdam" else [])
            options["max_grad_norm"] = self.one(limits)
        return options

    def group(self) -> dict[str, Any]:
        """A group of new parameters."""
        params = range(len(self.tensors), len(self.tensors) + self.one([1, 1, 2, 3, 5]))
        options = self.group_options()
        for k in params:
            fills = FILLS
            if self.infinite(options):
                fills = ["infinite"]
            self.tensors[k] = self.tensor(self.shape(), self.dtype(), fills)
            self.now[k] = dict(self.tensors[k])
        self.groups.append(list(params))
        return {"params": list(params), "options": options}

    def infinite(self, options: dict[str, Any]) -> bool:
        """Infinite entries are kept by optimizers that look at each element alone, if nothing multiplies them by 0."""
        alone = self.kind in ("NpuFusedAdamW", "NpuFusedSGD", "NpuFusedBertAdam", "NpuFusedAdam")
        feature = "infinite parameter without decay"
        return alone and self.wanted(feature, 0.03) and options.get("weight_decay", 1) == 0

    def scenario(self) -> Scenario:
        """The whole of it."""
        from fuzz.changes import Changes

        common = self.common()
        groups = [self.group() for _ in range(self.one([1, 1, 1, 2, 3]))]
        operations: list[Operation] = []
        changes = Changes(self)
        for _ in range(self.one([2, 4, 6, 9])):
            operations += changes.some()
            operations.append(changes.step())
        return {
            "seed": self.seed,
            "kind": self.kind,
            "named": self.named,
            "common": common,
            "backend": self.one([None, *BACKENDS, *BACKENDS]),
            "groups": groups,
            "tensors": self.tensors,
            "operations": operations,
        }
