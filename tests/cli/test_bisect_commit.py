# SPDX-License-Identifier: Apache-2.0
"""`gdnbench bisect commit` and `gdnbench replay --git-bisect` on repositories of a kernel, which is run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gdnbench as gdnbench_package
import gdnbench_kernels as gdnbench_kernels_package
from tests.messages import wording

Invoke = Callable[..., Any]  # the fixture `gdnbench`

KERNEL = """
import inspect
from helpers import factor
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent


def kernel(**call):
    names = inspect.signature(torch_recurrent).parameters
    found = torch_recurrent(**{name: call[name] for name in names if name in call})
    found["o"] = found["o"] * factor()
    return found
"""
WRAPPED = """

_right = torch_recurrent


@__import__("functools").wraps(_right)
def torch_recurrent(*args, **kwargs):
    found = _right(*args, **kwargs)
    found["o"] = found["o"] * 1.5
    return found
"""
HELPERS = "def factor():\n    return 1.0\n"


@pytest.fixture
def decodes(gdnbench: Invoke, tmp_path: Path) -> Path:
    store = tmp_path / "decodes.zarr"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8")
    assert gdnbench("synth", store, *options).code == 0
    return store


@pytest.mark.slow
def test_the_commit_is_named_across_a_merge_a_broken_commit_and_harmless_ones(
    gdnbench: Invoke, decodes: Path, history: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gdnbench.bisect.trial.toolchain", lambda on="cpu": {})  # may be edited meanwhile
    good = history.commit(
        "Begin", {"src/pack/__init__.py": "", "src/pack/k.py": KERNEL, "src/helpers.py": HELPERS}
    )
    history.commit("Say more", {"README": "a kernel\n"})
    history.git("checkout", "--quiet", "-b", "side")
    history.commit("Round another way", {"src/helpers.py": HELPERS.replace("1.0", "(1.0 + 2**-30)")})
    history.git("checkout", "--quiet", "main")
    history.commit("Say even more", {"README": "a fast kernel\n"})
    history.merge("side", "Merge side")
    history.commit("Half an edit", {"src/pack/k.py": KERNEL.replace("def kernel", "def kernel(")})
    history.commit("The other half", {"src/pack/k.py": KERNEL + "\n"})
    guilty = history.commit("Scale", {"src/helpers.py": HELPERS.replace("1.0", "1.5")})
    history.commit("Name the version", {"VERSION": "2\n"})
    (history.path / "src" / "helpers.py").write_text("work in progress\n")
    before = history.git("status", "--porcelain", "--branch"), history.git("worktree", "list")
    arguments = ("bisect", "commit", decodes, "--repo", history.path, "--path", "src", "--good", good)
    arguments += ("--bad", "main", "--kernel", "pack.k:kernel", "--state", tmp_path / "state")
    result = gdnbench(*arguments, "--json")
    found = json.loads(result.out)
    assert result.code == 1, result.err
    assert found["commit"]["hash"] == guilty
    assert found["commit"]["author_date"].startswith("2026-03-01T")
    assert "src/helpers.py | 2 +-" in "\n".join(found["commit"]["diff_stat"])
    assert (history.git("status", "--porcelain", "--branch"), history.git("worktree", "list")) == before
    again = gdnbench(*arguments)
    assert again.code == 1
    assert re.fullmatch(
        wording("bisect.first-bad-commit", commit=guilty[:10], subject="Scale", kind="numeric mismatch"),
        again.out.splitlines()[-1],
    )
    asked = [line for line in again.err.splitlines() if "commit" not in line]
    assert asked
    assert all(line.endswith("(known)") for line in asked)


@pytest.mark.slow
def test_a_repository_with_a_gdnbench_of_its_own_is_replayed_by_it(
    gdnbench: Invoke, decodes: Path, history: Any, tmp_path: Path
) -> None:
    """The kernels here are those of this project, at two places: only the copy in the repository is wrong."""
    for package, folder in (("gdnbench", gdnbench_package), ("gdnbench_kernels", gdnbench_kernels_package)):
        name = "kernels" if package == "gdnbench_kernels" else package
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(str(folder.__file__)).parent, history.path / name, ignore=ignored)
    # Of a time before bisection: no worker of this gdnbench could start there.
    shutil.rmtree(history.path / "gdnbench" / "bisect")
    table = '[tool.setuptools.package-dir]\ngdnbench = "gdnbench"\ngdnbench_kernels = "kernels"\n'
    good = history.commit("Begin", {"pyproject.toml": table})
    file = history.path / "kernels" / "gdn_decode" / "torch_recurrent.py"
    scaled = file.read_text() + WRAPPED
    history.commit("Half an edit", {str(file): file.read_text() + "def ("})
    guilty = history.commit("Scale", {str(file): scaled})
    history.commit("Say more", {"README": "kernels\n"})
    result = gdnbench(
        *("bisect", "commit", decodes, "--repo", history.path, "--good", good, "--bad", "main"),
        *("--kernel", "torch", "--tol", "2e-2", "--state", tmp_path / "state", "--json"),
    )
    assert result.code == 1, result.err
    found = json.loads(result.out)
    assert [one["subject"] for one in found["candidates"]] == ["Half an edit", "Scale"]
    assert found["candidates"][1]["hash"] == guilty
    broken = found["candidates"][0]["verdict"]
    assert broken["state"] == "skip"
    assert "SyntaxError" in broken["reason"] or "invalid syntax" in broken["reason"]


@pytest.mark.slow
def test_git_bisect_run(decodes: Path, history: Any) -> None:
    first = {"pack/__init__.py": "", "pack/k.py": "", "helpers.py": HELPERS}
    history.commit("No kernel yet", first)
    good = history.commit("Begin", {"pack/k.py": KERNEL})
    history.commit("Round another way", {"helpers.py": HELPERS.replace("1.0", "(1.0 + 2**-30)")})
    history.commit("No name", {"helpers.py": "nosuch\n"})
    history.commit("Back", {"helpers.py": HELPERS})
    guilty = history.commit("Scale", {"helpers.py": HELPERS.replace("1.0", "1.5")})
    history.commit("No package", {"helpers.py": "import nosuch\n"})
    history.commit("Scale again", {"helpers.py": HELPERS.replace("1.0", "1.25")})
    replay = [sys.executable, "-m", "gdnbench", "replay", str(decodes), "--kernel", "pack.k:kernel"]
    history.git("bisect", "start", "HEAD", good)
    said = history.git("bisect", "run", *replay, "--git-bisect", "--no-isolate")
    assert f"{guilty} is the first bad commit" in said
    history.git("bisect", "reset")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (KERNEL, 0),
        (KERNEL.replace("* factor()", "* 1.5"), 1),
        (KERNEL.replace("* factor()", "* nosuch"), 1),  # a crash of the kernel that is called
        ("nosuch\n" + KERNEL, 125),  # the same before it is
        ("import nosuch\n" + KERNEL, 125),
        ("def (\n" + KERNEL, 125),
        (KERNEL.replace("def kernel", "def other"), 125),
        (KERNEL.replace("names =", "raise NotImplementedError; names ="), 125),
        ("import os\nos.abort()\n", 125),
    ],
)
def test_statuses_of_git_bisect(
    gdnbench: Invoke, decodes: Path, tmp_path: Path, text: str, status: int
) -> None:
    text = text.replace("from helpers import factor", "factor = lambda: 1.0")
    (tmp_path / "k.py").write_text(text)
    isolate = "--isolate" if "abort" in text else "--no-isolate"
    kernel = f"{tmp_path / 'k.py'}:kernel"
    assert gdnbench("replay", decodes, "--kernel", kernel, "--git-bisect", isolate).code == status


def test_what_is_no_verdict_is_one_for_git(gdnbench: Invoke, decodes: Path, tmp_path: Path) -> None:
    for arguments in (
        ("replay", tmp_path / "nosuch.zarr", "--git-bisect"),
        ("replay", decodes, "7", "--git-bisect"),
        ("replay", decodes, "--kernel", "nosuch", "--git-bisect"),
        ("replay", decodes, "--nosuch", "--git-bisect"),
    ):
        result = gdnbench(*arguments)
        assert result.code == 125
        assert result.err.startswith("gdnbench: ")
        assert len(result.err.splitlines()) == 1
    assert gdnbench("replay", tmp_path / "nosuch.zarr").code == 2
