"""The pages of the API reference: which objects of the package each of them has, for mkdocstrings to fill."""

from __future__ import annotations

import ast
import json
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "ingot"

# What the reference says of the shared class, in its order; a test compares this with the class.
METHODS = [
    "step",
    "zero_grad",
    "add_param_group",
    "clip_grad_norm_fused_",
    "grad_norm",
    "track_metrics",
    "metrics",
    "release_gradients",
    "state_dict",
    "load_state_dict",
    "state_bytes",
    "all_params",
]
FOR_SUBCLASSES = ["check", "all_rules", "respell", "group_of"]


def entry(name: str, **options: object) -> str:
    """What makes mkdocstrings write down one object of the package."""
    return f"::: ingot.{name}\n    options: {json.dumps(options)}"


def api_pages() -> dict[str, str]:
    """The pages that mkdocstrings fills from the docstrings."""
    init = PACKAGE / "optim" / "__init__.py"
    assigned = [n for n in ast.parse(init.read_text()).body if isinstance(n, ast.Assign)]
    names = next(
        ast.literal_eval(n.value) for n in assigned if ast.unparse(n.targets[0]) == "__all__"
    )
    optimizers = [
        "# Optimizers",
        "Each class has a short name too: `ingot.AdamW` is `ingot.optim.NpuFusedAdamW`.",
    ]
    for name in sorted(names):
        short = name.removeprefix("NpuFused")
        optimizers.append(
            f"::: ingot.optim.{name}\n    options: {{heading: {short}, toc_label: {short}}}"
        )
    (base,) = (
        path.stem
        for path in PACKAGE.glob("*.py")
        if "class FusedOptimizer(" in path.read_text(encoding="utf-8")
    )
    shared = [
        "# What all optimizers share",
        "Every optimizer is a `torch.optim.Optimizer`; this is what Ingot's have beside and instead.",
        # Inherited members as well: track_metrics and metrics are those of a base class.
        f"::: ingot.{base}.FusedOptimizer\n"
        f"    options: {{members: {json.dumps(METHODS)}, inherited_members: true}}",
        entry(
            "step.in_backward.ReleasedGradients",
            members=["updated", "waiting", "discard", "remove"],
        ),
        "## For a new optimizer",
        "What a subclass may change: [Adding an optimizer](../docs/adding_an_optimizer.md).",
        *(entry(f"{base}.FusedOptimizer.{name}", heading_level=3) for name in FOR_SUBCLASSES),
    ]
    functions = ["# Functions"]
    for name in ("create_optimizer", "list_optimizers", "param_groups", "npusim.install"):
        functions.append(entry(name, heading=name, toc_label=name))
    metrics = [
        "# Metrics",
        "What [`track_metrics`](shared.md#ingot.optimizer.FusedOptimizer.track_metrics) measures and writes: "
        "[Watching a run](../docs/watching.md).",
        entry("metrics.read", heading="read", toc_label="read"),
        entry("metrics.Metrics", members=["as_dict"]),
    ]
    pages = {
        "optimizers": optimizers,
        "shared": shared,
        "functions": functions,
        "metrics": metrics,
    }
    return {f"api/{name}.md": "\n\n".join(lines) + "\n" for name, lines in pages.items()}
