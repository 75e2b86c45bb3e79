# SPDX-License-Identifier: Apache-2.0
"""docs/python.md and docs/notebook.ipynb print what they show, and the page has every name."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gdnbench
from gdnbench.api import results, store
from tests.docs import notebook, session
from tests.docs.python_session import run_python

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"


def test_the_sessions_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install 'gdnbench[notebook]'")
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "captures").symlink_to(ROOT / "captures")
    for block in session.blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    done = list(run_python(page, tmp_path))
    assert [(one.line, one.wrong, one.printed) for one in done if one.wrong] == []
    assert len(done) > 30


def test_a_session_that_prints_something_else() -> None:
    page = "x\n```pycon\n>>> 1 + 1\n3\n>>> 1 / 0\nZeroDivisionError: division by zero\n```\n"
    wrong = [(one.line, bool(one.wrong)) for one in run_python(page, ROOT)]
    assert wrong == [(3, True), (5, False)]


def test_the_page_has_every_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {name for name in gdnbench.__all__ if not name.startswith("_")} - {"Error"}
    for one in (
        *map(vars(store).get, ("Store", "Record", "StoredTensor")),
        results.ReplayResult,
        results.SimResult,
    ):
        assert isinstance(one, type)
        members = {name for name in dir(one) if not name.startswith("_")}
        # What a mapping or sequence has, and what docs/replay.md says of the workbench's report.
        names |= members - {"count", "index", "from_report", "store"}
    names |= inspect.signature(gdnbench.replay).parameters.keys()
    names |= inspect.signature(gdnbench.diff).parameters.keys() - {"a", "b"}
    names |= inspect.signature(gdnbench.sim).parameters.keys() - {"args", "function"}
    assert str(inspect.getdoc(gdnbench.diff)).startswith("Compare two stores")
    missing = {
        name
        for name in names
        if not re.search(rf"`[^`]*\b{name}\b[^`]*`|^>>>.*\b{name}\b", page, re.MULTILINE)
    }
    assert missing == set()


def test_results_are_frozen() -> None:
    for one in (results.ReplayResult, results.DiffResult, results.SimResult):
        assert dataclasses.is_dataclass(one)
        assert one.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_cells_of_the_notebook() -> None:
    """Executed here, without Jupyter: the outputs are those that are stored."""
    pytest.importorskip("pandas", reason="pandas is not installed: pip install 'gdnbench[notebook]'")
    cells = notebook.code_cells()
    new = notebook.execute(["".join(cell["source"]) for cell in cells], notebook.NOTEBOOK.parent)
    found = [
        (number, difference)
        for number, (cell, outputs) in enumerate(zip(cells, new, strict=True))
        for difference in notebook.differences(cell["outputs"], outputs)
    ]
    assert found == []
    assert "data:image/png" in str([cell["outputs"] for cell in cells])


def test_differences_of_a_notebook_are_found() -> None:
    def html(text: str) -> list[notebook.Output]:
        return [{"output_type": "execute_result", "data": {"text/html": text}}]

    assert list(notebook.differences(html("<td>0.12</td>"), html("<td>0.13</td>"))) == []
    assert list(notebook.differences(html("<td>pass</td>"), html("<td>FAIL</td>"))) != []
    assert list(notebook.differences(html("x"), [])) == ["0 outputs, not 1"]


@pytest.mark.slow
def test_the_notebook_in_jupyter() -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e '.[dev]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e '.[dev]'")
    command = [sys.executable, str(ROOT / "scripts" / "execute_notebook.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all as it is there\n"), done.stderr


HEAVY = "numpy torch zarr typer rich gdnbench.api gdnbench.replay"


def test_the_import_is_cheap_and_stores_are_read_without_torch() -> None:
    """And the packages of the functions' names are found as before, in whatever order they are imported."""
    program = f"""
import sys, gdnbench
assert not set({HEAVY.split()}) & set(sys.modules), sys.modules.keys()
import gdnbench.diff, gdnbench.sim.errors as errors
assert gdnbench.sim.errors is errors and callable(gdnbench.sim) and callable(gdnbench.diff)
from gdnbench import sim
assert sim is gdnbench.sim is sys.modules["gdnbench.sim"]
assert "numpy" not in sys.modules
try:
    gdnbench.nothing
except AttributeError as error:
    print(error)
sys.modules["torch"] = None
with gdnbench.open({str(ROOT / "captures" / "decode.zarr.zip")!r}) as store:
    print(store[3].before["q"].bits().dtype.name, "<table>" in store._repr_html_())
    for call in (store[3].before["q"].torch, lambda: gdnbench.replay(store), lambda: gdnbench.sim("f.py:f")):
        try:
            call()
        except gdnbench.CannotRunError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    missing = "this needs torch, which is not installed: pip install 'gdnbench[capture]'"
    assert done.stdout.splitlines() == [
        "module 'gdnbench' has no attribute 'nothing'",
        "uint16 True",
        *[missing] * 3,
    ], done.stderr


@pytest.mark.slow
def test_a_user_is_told_by_mypy(tmp_path: Path) -> None:
    """Of a wrong option; py.typed and the functions beside the packages of their names do it."""
    program = tmp_path / "user.py"
    program.write_text(
        "import gdnbench\nfrom gdnbench import open as open_store\n\nwith open_store('run.zarr') as store:\n"
        "    number: int = store[3].before['q'].nbytes\n    gdnbench.replay(store, kernel='torch').failures\n"
        "    gdnbench.replay(store, kernl='torch')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert re.findall(r"user.py:(\d+): error: (.*?)(?:;|  )", done.stdout) == [
        ("7", 'Unexpected keyword argument "kernl" for "replay"')
    ], done.stdout
