# SPDX-License-Identifier: Apache-2.0
"""The repository with regressions in its history: they show where they are meant to, and nowhere else.

`scripts/find_regressions.py` looks for all of them; so does the slow test here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gdnbench.bisect.cache_key import digest_store
from gdnbench.bisect.stage import probe
from gdnbench.bisect.verdict import State
from gdnbench_kernels import compiling
from tests.bisect.regressions import captures, finding, repository

SCRIPTS = Path(__file__).parents[2] / "scripts"
LIMIT = 600.0
"""Seconds of CPU time that the questions about the inverse may take: about what an idle core needs for them,
as one is asked after another. Wall time on a busy machine says nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return finding.Cases(tmp_path_factory.mktemp("regressions"))


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_repository_is_the_same_every_time(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_AUTHOR_NAME", "somebody")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    assert repository.make(tmp_path / "again") == made.tags
    assert git(tmp_path / "again", "rev-parse", "main") == git(made.repository, "rev-parse", "main")
    # About thirty up to the first release with a wait left out; after it come two more cases.
    assert 28 <= int(git(made.repository, "rev-list", "--count", "v1.2")) <= 35
    assert git(made.repository, "status", "--porcelain") == ""


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    command = [sys.executable, str(SCRIPTS / "make_regressions.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


def test_each_regression_is_one_line_of_one_kernel(made: Any) -> None:
    files = {"inverse": "inverse", "beta": "decode", "tail": "chunk_uw"}
    files |= dict.fromkeys(("barrier", "operand"), "chunk_state")
    for tag, file in files.items():
        changed = git(made.repository, "diff", "--numstat", f"{tag}~1", tag).split("\n")
        (counts,) = [one.split("\t") for one in changed]
        assert counts[2] == f"served_kernels/{file}.py"
        assert int(counts[0]) <= 1
        assert int(counts[1]) == 1


def test_nothing_is_copied_that_the_package_does_not_import(made: Any) -> None:
    """Every module of the package is read by another one of it, or is what the server calls."""
    folder = made.checkout("v1.0") / "served_kernels"
    texts = {file.stem: file.read_text() for file in folder.glob("*.py")}
    for text in texts.values():
        ast.parse(text)
    for name in texts.keys() - {"__init__", "prefill", "decode"}:
        others = "".join(text for other, text in texts.items() if other != name)
        assert f"served_kernels.{name}" in others or f"served_kernels import {name}" in others, name


def test_two_commits_do_not_build(made: Any) -> None:
    """The half renaming, and the one that comes before it is mended."""
    fails = [
        revision
        for revision in ("broken~1", "broken", "mended~1", "mended")
        if lacks(git(made.repository, "show", f"{revision}:served_kernels/chunk_uw.py"), "GROUP_WARPS")
    ]
    assert fails == ["broken", "mended~1"]


def lacks(text: str, name: str) -> bool:
    """Whether a module uses a name that it does not assign."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == name]
    return bool(nodes) and not any(isinstance(node.ctx, ast.Store) for node in nodes)


@pytest.mark.slow  # minutes; test_record.py and test_stage.py find the same in small kernels
def test_beta_in_bf16_is_found_by_carrying_states(made: Any) -> None:
    """The stage is asked about in the call that was named before."""
    asked = made.beta()
    for what in ("record, good", "record", "stage"):
        question = next(asked)
        assert question.what == what
        found = finding.answered(question)
        assert found.wrong == "", found


@pytest.mark.slow
def test_a_round_less_is_seen_by_keys_that_are_alike_alone(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the step that inverts, of exact A; outputs are looked at where all are found."""
    pytest.importorskip("cutlass", reason="CuTe DSL has wheels for Linux only")
    options = {"seqlens": (64,), "heads": (1, 1), "beta": (0.8, 1.0), "gate_span": 0.1, "seed": 1}
    unlike = captures.prefill(made.folder / "one-unlike.zarr", **options)
    alike = captures.prefill(made.folder / "one-alike.zarr", key_correlation=0.97, **options)

    def passes(revision: str, store: Path) -> bool:
        for name in [name for name in sys.modules if name.partition(".")[0] == "served_kernels"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(compiling, "_programs", {})  # known by the name of what they are compiled from
        monkeypatch.syspath_prepend(str(made.checkout(revision)))
        kept = {
            "step": "invert",
            "dtypes": {"A": "float32"},
            "content": digest_store(str(store), lambda _: [0]),
        }
        asked = {"on": "sim", "record": 0, "k": None, "tol": None, "schedules": ["late"], **kept}
        found = probe.alone(store=str(store), kernel=finding.PREFILL, **asked)
        assert found.state in (State.GOOD, State.BAD), found.reason
        return found.state is State.GOOD

    assert passes("inverse~1", alike)
    assert passes("inverse", unlike)
    assert not passes("inverse", alike)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_are_found(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "find_regressions.py"), "--folder", str(tmp_path / "all")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("inverse: ")]
    assert float(line.split(", ")[1].split()[0]) < LIMIT
