"""The test cases, one file per optimizer, found by themselves.

In a test, under any folder of tests/::

    from cases import CASES, each_backend, each_case, each_setting

    @each_setting                      # every optimizer with every declared set of options
    @each_backend                      # every backend that is available here
    def test_promise(case, options, backend): ...
"""

from importlib import import_module
from pathlib import Path

import pytest

from cases.declare import Bad, Case, Close, Options
from ingot import backends

FILES = sorted(
    path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if path.stem != "declare"
)
CASES: dict[str, Case] = {stem: import_module(f"cases.{stem}").CASE for stem in FILES}
SETTINGS = [
    pytest.param(case, options, id=f"{stem}-{name}".replace(" ", "_"))
    for stem, case in CASES.items()
    for name, options in case.options.items()
]
BACKENDS = [info.name for info in backends.describe() if info.available]

each_case = pytest.mark.parametrize(
    "case", [pytest.param(case, id=stem) for stem, case in CASES.items()]
)
each_setting = pytest.mark.parametrize(("case", "options"), SETTINGS)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_fused_backend = pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])

__all__ = ["BACKENDS", "CASES", "SETTINGS", "Bad", "Case", "Close", "Options"]
__all__ += ["each_backend", "each_case", "each_fused_backend", "each_setting"]
