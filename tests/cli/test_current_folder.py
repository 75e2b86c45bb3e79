# SPDX-License-Identifier: Apache-2.0
"""A store that a stranger made is the current folder, with Python files in it: none of them is imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gdnbench.store.reader import Store
from tests.subset import quick

ROOT = Path(__file__).resolve().parents[2]

Invoke = Callable[..., Any]  # the fixture `gdnbench`

SHADOWED = (
    *("torch", "numpy", "zarr", "json", "selectors", "socket", "pickle", "struct", "random", "logging"),
    *("signal", "threading", "subprocess", "tempfile", "dask", "distributed", "typer", "rich", "blake3"),
)
"""Modules that gdnbench, its workers or what starts them import."""

PROGRAM = """
import torch
from gdnbench.capture import record
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

@record("gdn_decode")
def step(q, k, v, g, beta, state, state_indices, o):
    found = torch_recurrent(q=q, k=k, v=v, g=g, beta=beta, state=state, state_indices=state_indices)
    o.copy_(found["o"] + 1)

q = torch.nn.functional.normalize(torch.ones(1, 1, 1, 8), dim=-1)
step(q=q, k=q, v=torch.ones(1, 1, 1, 8), g=-torch.ones(1, 1, 1), beta=torch.ones(1, 1, 1) / 2,
     state=torch.zeros(2, 1, 8, 8), state_indices=torch.tensor([[1]], dtype=torch.int32),
     o=torch.zeros(1, 1, 1, 8))
"""
KERNEL = """
from gdnbench_kernels.gdn_decode.torch_recurrent import torch_recurrent

def kernel(q, k, v, g, beta, state, state_indices):
    return torch_recurrent(**locals())
"""


@pytest.fixture
def hostile(gdnbench: Invoke, tmp_path: Path) -> Path:
    """A store of one decode record; its folder has modules that write their names into `imported`."""
    store = tmp_path / "run.zarr"
    options = ("--op", "gdn_decode", "--batch", "1", "--heads", "1,1", "--head-dim", "8,8", "--slots", "2")
    assert gdnbench("synth", store, *options).code == 0
    for name in SHADOWED:
        text = f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r} + ' ')\nraise SystemExit(9)\n"
        (store / f"{name}.py").write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    return store


def run(folder: Path, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python command in `folder`, as a shell there would run it; `-m` puts that folder first."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GDNBENCH_")}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "ls": ("ls", "."),
    "a replay in a process of its own": ("replay", ".", "--kernel", "torch", "--isolate"),
    "a replay over workers": ("replay", ".", "--kernel", "torch", "--workers", "1"),
    "a bisection": ("bisect", "record", ".", "--kernel", "torch", "--state", "../state"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", quick(COMMANDS, 1))
def test_nothing_of_the_current_folder_is_imported(hostile: Path, what: str) -> None:
    ran = run(hostile, "-m", "gdnbench", *COMMANDS[what])
    assert not (hostile.parent / "imported").exists(), (hostile.parent / "imported").read_text()
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow  # imports transformers twice
def test_nor_by_the_sealer_of_a_capture(hostile: Path) -> None:
    """The program's own `python program.py` does not look there either."""
    run_store = hostile.parent / "captured.zarr"
    ran = run(hostile, hostile.parent / "program.py", GDNBENCH_CAPTURE=str(run_store))
    assert ran.returncode == 0, ran.stderr
    sealed = run(hostile, "-P", "-m", "gdnbench.store.sealer", run_store)
    assert sealed.returncode == 0, sealed.stderr
    assert not (hostile.parent / "imported").exists(), (hostile.parent / "imported").read_text()
    with Store.open(run_store) as store:
        assert len(store.records) == 1


@pytest.mark.slow  # processes that import torch
def test_nor_by_the_judge_of_a_capture(hostile: Path) -> None:
    run_store = hostile.parent / "captured.zarr"
    command = (
        "capture",
        run_store,
        "--on-mismatch",
        "2",
        "--",
        sys.executable,
        hostile.parent / "program.py",
    )
    ran = run(hostile, "-m", "gdnbench", *command)
    assert ran.returncode == 0, ran.stderr
    assert not (hostile.parent / "imported").exists(), (hostile.parent / "imported").read_text()
    with Store.open(run_store) as store:
        assert len(store.records) == 1


@pytest.mark.slow  # starts a program for each
@pytest.mark.parametrize("how", ["--isolate", "--no-isolate", "--workers"])
def test_a_kernel_that_is_named_is_found_there(hostile: Path, how: str) -> None:
    """The user says so, and its folder is not the store."""
    (hostile.parent / "mine.py").write_text(KERNEL)
    options = [how] if how != "--workers" else [how, "1"]
    ran = run(hostile.parent, "-m", "gdnbench", "replay", hostile, "--kernel", "mine:kernel", *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_kernel_that_is_named_is_found_by_a_bisection(hostile: Path) -> None:
    (hostile.parent / "mine.py").write_text(KERNEL)
    ran = run(hostile.parent, "-m", "gdnbench", "bisect", "record", hostile, "--kernel", "mine:kernel")
    assert ran.returncode == 0, ran.stdout + ran.stderr


STARTS = ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
OF_OS = ("system", "popen", "startfile", "posix_spawn", "posix_spawnp")
ISOLATED = "python -P or -I"
SHOWN = 40
KNOWN: Mapping[str, str] = {
    "bisect/commit/repository.py: ['git', *settings, *arguments]": (
        "git; the repository is the user's, and its code is run"
    ),
    "bisect/commit/revision_cli.py: [self._place.python]": (
        "on purpose: the current folder is the checkout of the revision, whose gdnbench and kernel are run"
    ),
    "bisect/commit/worktree.py: [sys.executable, '-I']": ISOLATED,
    "bisect/env/environments.py: [*command, *arguments]": (
        "`command` begins with python -P; tests/bisect/test_env.py"
    ),
    "bisect/env/environments.py: [self._base.python, '-P', '-m', 'venv', ": ISOLATED,
    "bisect/input/reproduction.py: [sys.executable, script, kernel, HERE]": (
        "on purpose: part of a script that `bisect input` writes, and started by whoever runs the script; the"
        " kernel that they name is looked for in their folder"
    ),
    "bisect/interpreter.py: [python, '-I', '-c', _ASK]": ISOLATED,
    "capture/launch.py: command": "on purpose: the program that the user captures, started as by a shell",
    "capture/runtime.py: ['/bin/sh', '-c', command, sys.executabl": "`command` has python -P",
    "provenance.py: ['git', *(word for one in (*_GIT_SETTING": (
        "git, without the programs that a repository names; tests/capture/test_provenance.py"
    ),
    "sim/predict/machine_code.py: command": "ptxas and nvdisasm, of PATH or of NVIDIA's packages: no Python",
    "sim/virtual/program.py: command": "on purpose: the program that the user runs, started as by a shell",
    "workers/process.py: [python, '-P', '-m', module, *map(str, p": ISOLATED,
    "workers/python_code.py: [*python, '-c', _PRELUDE + code, str(wat": (
        "for those that call `run_python_code`, which are here too"
    ),
}
"""Everything that gdnbench starts: file, and the beginning of the command. Dask starts its workers itself,
which a test above covers; the processes of kernels are those of `workers/process.py`."""


def test_every_process_that_is_started_is_known() -> None:
    found = {}
    for path in sorted((ROOT / "gdnbench").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("subprocess", "multiprocessing", "os.", "Popen", "run_python")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _starts_a_process(node.func):
                command = ast.unparse(node.args[0])
                found[f"{path.relative_to(ROOT / 'gdnbench')}: {command[:SHOWN]}"] = command
    assert set(found) == set(KNOWN)
    for short, command in found.items():
        assert KNOWN[short] != ISOLATED or "'-P'" in command or "'-I'" in command


def _starts_a_process(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return isinstance(function, ast.Name) and function.id in ("Popen", "run_python_code")
    module, name = function.value.id, function.attr
    return (
        (module == "subprocess" and name in STARTS)
        or (module == "os" and (name in OF_OS or name.startswith(("exec", "spawn"))))
        or (module == "multiprocessing" and name in ("Process", "Pool", "get_context"))
        or name == "run_python_code"
    )
