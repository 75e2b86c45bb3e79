# SPDX-License-Identifier: Apache-2.0
"""Where a record comes from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gdnbench import provenance
from gdnbench.capture.adapters import load_adapters


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed script that is the program being run; the current folder is elsewhere and in no tree."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "program.py").write_text("1")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tree / "program.py")])
    return tree / "program.py"


def test_commit_and_dirty_flag_of_the_script_s_tree(script: Path) -> None:
    sha = git(script.parent, "rev-parse", "HEAD")
    assert provenance.git_state() == {"sha": sha, "dirty": False}
    script.write_text("2")
    assert provenance.git_state() == {"sha": sha, "dirty": True}


def test_no_tree_and_no_git_are_no_failure(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert provenance.git_state() is None
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert provenance.git_state() is None


def _configured(tree: Path, **settings: str) -> None:
    for name, value in settings.items():
        git(tree, "config", name.replace("__", "."), value)


def _monitor(tree: Path, program: Path) -> None:
    _configured(tree, core__fsmonitor=str(program))


def _filter(key: str) -> Callable[[Path, Path], None]:
    def hostile(tree: Path, program: Path) -> None:
        (tree / ".gitattributes").write_text("* filter=a.b\n")
        git(tree, "config", f"filter.a.b.{key}", str(program))
        git(tree, "config", "filter.a.b.required", "true")
        (tree / "program.py").write_text("2")  # of the same size: git compares the contents

    return hostile


def _hooks(tree: Path, program: Path) -> None:
    hooks = program.parent / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(program)
    _configured(tree, core__hooksPath=str(hooks))
    os.utime(tree / "program.py", (1, 1))  # the index has another time: git writes it anew


def _partial_clone(tree: Path, program: Path) -> None:
    """An object that `git status` needs is to be fetched by a program of the repository's choice."""
    name = git(tree, "rev-parse", "HEAD^{tree}")
    (tree / ".git" / "objects" / name[:2] / name[2:]).unlink()
    _configured(
        tree,
        core__repositoryFormatVersion="1",
        extensions__partialClone="origin",
        remote__origin__promisor="true",
        remote__origin__url=str(tree),
        remote__origin__uploadpack=str(program),
    )


def _submodule(tree: Path, program: Path) -> None:
    (tree / "below").mkdir()
    git(tree / "below", "init", "-q")
    git(tree / "below", "commit", "-q", "--allow-empty", "-m", "first")
    git(tree, "add", "below")
    git(tree, "commit", "-q", "-m", "second")
    _monitor(tree / "below", program)


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "a file system monitor": _monitor,
    "a filter": _filter("clean"),
    "a filter process": _filter("process"),
    "a hook": _hooks,
    "a partial clone": _partial_clone,
    "a submodule": _submodule,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_program_that_the_repository_names_is_run(script: Path, tmp_path: Path, what: str) -> None:
    """The current folder may be a store that a stranger made, with a repository in it."""
    ran = tmp_path / "ran"
    program = tmp_path / "hostile"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    HOSTILE[what](script.parent, program)
    sha = git(script.parent, "rev-parse", "HEAD")
    found = provenance.git_state()
    assert not ran.exists()
    assert found is not None
    assert found["sha"] == sha
    if what in ("a file system monitor", "a hook"):
        assert found["dirty"] is False
    subprocess.run(["git", "status"], cwd=script.parent, capture_output=True, check=False)
    assert ran.exists(), "git itself runs no program here: the test shows nothing"


def test_a_folder_that_is_a_bare_repository_has_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store with files named `HEAD`, `config`, `objects` and `refs` would be one to git."""
    git(tmp_path, "init", "-q", "--bare", "store.git")
    _configured(tmp_path / "store.git", core__fsmonitor="false")
    monkeypatch.chdir(tmp_path / "store.git")
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert provenance.git_state() is None


def test_changes_in_files_with_a_filter_are_not_told(script: Path) -> None:
    """As those of Git LFS: what the file is to git, only the filter knows."""
    tree = script.parent
    (tree / "data.bin").write_text("1")
    (tree / ".gitattributes").write_text("*.bin filter=lfs\n*.txt filter=unknown\n")
    (tree / "text.txt").write_text("1")
    git(tree, "config", "filter.lfs.clean", "tr 2 1")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "second")
    sha = git(tree, "rev-parse", "HEAD")
    (tree / "data.bin").write_text("2")
    assert provenance.git_state() == {"sha": sha, "dirty": None}
    (tree / "text.txt").write_text("2")
    assert provenance.git_state() == {"sha": sha, "dirty": True}
    git(tree, "checkout", "-q", "text.txt")
    (tree / "new").write_text("1")
    assert provenance.git_state() == {"sha": sha, "dirty": True}


def test_versions_and_machine() -> None:
    found = provenance.provenance()
    assert found["packages"]["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"]
    assert found["os"].startswith(os.uname().sysname)


def test_every_framework_with_an_adapter_has_its_version_recorded() -> None:
    held = [one.signatures.distribution for one in load_adapters()[0] if hasattr(one, "signatures")]
    assert set(held) >= {"flash-linear-attention", "flashinfer-python", "vllm", "sglang"}
    assert {"transformers", *held} <= set(provenance.PACKAGES)


def test_rank_comes_from_the_launcher_s_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    info = provenance.process_info()
    assert (info["rank"], info["world_size"], info["local_rank"], info["pid"]) == (3, 8, 1, os.getpid())
    monkeypatch.delenv("RANK")
    assert provenance.process_info()["rank"] is None


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"), (5, 6, 7)),
        (("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"), (5, 6, 7)),
        (("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), (None, None, None)),
    ],
)
def test_ranks_of_other_launchers(
    monkeypatch: pytest.MonkeyPatch, variables: tuple[str, ...], found: tuple[int | None, ...]
) -> None:
    for name, value in zip(variables, "567", strict=True):
        monkeypatch.setenv(name, value)
    info = provenance.process_info()
    assert (info["rank"], info["world_size"], info["local_rank"]) == found
    monkeypatch.setenv("RANK", "1")
    assert provenance.process_info()["rank"] == 1


def test_what_an_adapter_says_of_its_framework_s_groups() -> None:
    class Says:
        def parallel(self) -> dict[str, tuple[int, int]]:
            return {"tp": (1, 4), "dp": (0, 1)}

    class Fails:
        def parallel(self) -> dict[str, tuple[int, int]]:
            raise AssertionError("no groups yet")

    assert provenance.parallel_of(Says()) == {"parallel": {"tp": [1, 4], "dp": [0, 1]}}
    assert provenance.parallel_of(Fails()) == provenance.parallel_of(object()) == {}
