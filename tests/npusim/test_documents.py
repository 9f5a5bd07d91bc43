"""Scripts that call the optimizers as the documents do run as they are, and give the CPU's numbers."""

import io
import json
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from npusim_paths import DOCUMENTS, HERE, Run

from cases import CASES

SCRIPTS = sorted(p for p in (HERE / "scripts").glob("*.py") if p.stem != "parameters")
WAYS = {"runner": (["-m", "ingot.npusim"], None), "variable": ([], "1")}
# One float16 step of the values here; float32 differs by roundings, from backend to backend.
CLOSE = {"float": {"rtol": 1e-6, "atol": 1e-6}, "half": {"rtol": 1e-3, "atol": 1e-3}}


def run_on_cpu(script: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[list[float]]]:
    monkeypatch.setattr(sys, "argv", [str(script), "cpu"])
    monkeypatch.syspath_prepend(str(script.parent))
    output = io.StringIO()
    with redirect_stdout(output):
        runpy.run_path(str(script), run_name="__main__")
    result = json.loads(output.getvalue())
    assert result["devices"] == ["cpu"]
    values: list[list[list[float]]] = result["values"]
    return values


def test_every_optimizer_has_a_script() -> None:
    assert [script.stem for script in SCRIPTS] == sorted(CASES)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_gives_the_numbers_of_the_cpu(
    run: Run, script: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, npusim = WAYS[way]
    done = run(*args, str(script), npusim=npusim)
    result = json.loads(done.stdout)
    assert result["devices"] == ["npu:0"]
    expected = run_on_cpu(script, monkeypatch)
    for number, (ours, theirs) in enumerate(zip(result["values"], expected, strict=True)):
        close = CLOSE["half" if number in (1, 3) else "float"]
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), **close)
    start = torch.linspace(-2.0, 1.0, 12).reshape(3, 4)
    assert (torch.tensor(result["values"][0]) - start).abs().max() > 1e-3  # it did move
    assert (
        result["values"][-1] == torch.linspace(-2.0, 5.0, 8).reshape(2, 4).tolist()
    )  # no gradient


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The python examples of the documents, each in a file of its own, unchanged."""
    if not DOCUMENTS.is_dir():
        pytest.skip(f"the documents are not beside the repository ({DOCUMENTS})")
    folder = tmp_path_factory.mktemp("documents")
    files = {}
    for document in sorted(DOCUMENTS.glob("NpuFused*.md")):
        blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.M | re.S)
        assert len(blocks) == 1, document
        files[document.stem] = folder / f"{document.stem}.py"
        files[document.stem].write_text(blocks[0])
    # Five of the nine have a document.
    assert len(files) == 5 and {*files} <= {case.kind.__name__ for case in CASES.values()}
    return files


@pytest.mark.parametrize("way", WAYS)
def test_documents_run_verbatim(
    run: Run, examples: dict[str, Path], way: str, tmp_path: Path
) -> None:
    driver = tmp_path / "all.py"
    driver.write_text(
        "import runpy, sys\n"
        "for path in sys.argv[1:]:\n"
        "    made = runpy.run_path(path, run_name='__main__')\n"
        "    print(type(made['fused_opt']).__name__, {str(p.device) for p in made['params']})\n"
    )
    args, npusim = WAYS[way]
    done = run(*args, str(driver), *map(str, examples.values()), npusim=npusim)
    assert done.stdout.splitlines() == [f"{name} {{'npu:0'}}" for name in examples]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=stem) for stem, case in CASES.items() if case.published]
)
def test_documents_reach_the_published_sums(examples: dict[str, Path], case) -> None:  # type: ignore[no-untyped-def]
    made = runpy.run_path(str(examples[case.kind.__name__]), run_name="__main__")
    with torch.no_grad():
        for _ in range(9):  # the tenth, with the one of the example
            made["fused_opt"].step()
    for number, (param, expected) in enumerate(
        zip(made["params"], case.published[1], strict=False)
    ):
        total = param.detach().sum().item()
        # Published to three digits after the point; a half sum to one unit in its last place.
        assert total == pytest.approx(expected, abs=0.13 if number in (2, 3, 5) else 1.5e-3)
