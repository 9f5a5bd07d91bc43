"""Short names of the optimizers: the same classes, found by dir and by type checkers, and still lazily."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ingot
from ingot import optim

SHORT = {name.removeprefix("NpuFused"): name for name in optim.__all__}
FUNCTIONS = {"create_optimizer", "list_optimizers", "param_groups"}
MODULES = {"metrics", "optim"}


@pytest.mark.parametrize("short", SHORT)
def test_a_short_name_is_the_same_class(short: str) -> None:
    assert getattr(ingot, short) is getattr(optim, short) is getattr(optim, SHORT[short])


def test_dir_shows_every_public_name_and_no_other() -> None:
    public = {*SHORT, *SHORT.values(), *FUNCTIONS, *MODULES}
    assert {name for name in dir(ingot) if not name.startswith("__")} == public
    assert "__version__" in dir(ingot)
    assert {*SHORT, *SHORT.values()} <= set(dir(optim))
    for name in dir(ingot):
        getattr(ingot, name)


def test_a_star_import_leaves_the_names_of_torch_alone() -> None:
    names: dict[str, object] = {}
    exec("from ingot import *", names)
    assert names.keys() - {"__builtins__"} == {*optim.__all__, *FUNCTIONS}
    names.clear()
    exec("from ingot.optim import *", names)
    assert names.keys() - {"__builtins__"} == set(optim.__all__)


def test_a_wrong_name_is_refused_with_a_hint() -> None:
    with pytest.raises(AttributeError, match="module 'ingot' has no attribute 'AdmW'") as caught:
        _ = ingot.AdmW
    assert caught.value.name == "AdmW" and caught.value.obj is ingot
    done = subprocess.run(
        [sys.executable, "-c", "import ingot; ingot.AdmW"], capture_output=True, text=True
    )
    assert "Did you mean: 'AdamW'?" in done.stderr


@pytest.mark.parametrize("name", ["metrics.read", "metrics.Metrics", "optim.AdamW", "AdamW"])
def test_import_ingot_is_enough(name: str) -> None:
    """In a process of its own: in this one, other modules have loaded what a name could lack."""
    program = f"import ingot; ingot.{name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_and_asking_for_lower_case_names_loads_no_torch() -> None:
    """Torch imports ingot.npusim in the middle of its own import: nothing may lead back to torch."""
    program = """
import sys, ingot
for name in ("nothing", "_private", "__wrapped__", "backends"):
    assert not hasattr(ingot, name), name
assert "torch" not in sys.modules and "ingot.optim" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def names_for_type_checkers(module: str) -> set[str]:
    """What the block under ``if TYPE_CHECKING`` defines."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = set()
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_type_checkers_are_told_of_every_name() -> None:
    """A new optimizer needs a line in each block: checkers and editors do not run the files."""
    assert names_for_type_checkers("ingot") == {
        *SHORT,
        *SHORT.values(),
        *FUNCTIONS,
        "metrics",
    }
    assert names_for_type_checkers("ingot.optim") - {"FusedOptimizer"} == set(SHORT)
