"""Where a record comes from."""

from __future__ import annotations

import os
import subprocess
import sys
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
