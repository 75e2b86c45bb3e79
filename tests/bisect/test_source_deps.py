# SPDX-License-Identifier: Apache-2.0
"""What a kernel's verdict depends on beside its own file: what that imports, and no other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdnbench.bisect import cache_key, trial


def digest(kernel: str) -> str:
    return cache_key.digest_code(trial.kernel_sources(kernel))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine" / "parts").mkdir(parents=True)
    for name, text in {
        "mine.py": "import torch, helper\ndef kernel(): load('tables/tuned.json'), load('body.cuh')\n",
        "helper.py": "from engine.parts import (\n    inner\n)\n",
        "engine/__init__.py": "",
        "engine/parts/inner.py": "import far\n",
        "engine/config.hpp": "int rounds = 3;\n",
        "far.py": "ROUNDS = 3\n",
        "body.cuh": "// rounds 3\n",
        "unrelated.py": "ROUNDS = 3\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tuned.json").write_text("{}")
    return tmp_path


REACHED = ("mine.py", "helper.py", "engine/parts/inner.py", "engine/config.hpp", "far.py", "body.cuh")


@pytest.mark.parametrize("changed", [*REACHED, "tables/tuned.json"])
def test_a_file_that_is_reached_counts(here: Path, changed: str) -> None:
    before = digest("mine.py:kernel")
    assert digest("mine.py:kernel") == before
    with (here / changed).open("a") as file:
        file.write("\n")
    assert digest("mine.py:kernel") != before


def test_a_file_that_is_not_reached_does_not(here: Path) -> None:
    """A script that the command writes beside the kernel is no reason to ask all again."""
    before = digest("mine.py:kernel")
    (here / "unrelated.py").write_text("ROUNDS = 2\n")
    (here / "repro.py").write_text("import mine\n")
    assert digest("mine.py:kernel") == before


@pytest.mark.parametrize("changed", ["steps.py", "lib/added.py", "elsewhere/linked.py"])
def test_what_is_reached_in_another_way_counts(here: Path, changed: str) -> None:
    """A kernel's step that a text names, a folder that is added to the search path, one behind a link."""
    for folder in ("lib", "elsewhere"):
        (here / folder).mkdir()
    for name in ("steps.py", "lib/added.py", "elsewhere/linked.py"):
        (here / name).write_text("ROUNDS = 3\n")
    (here / "engine" / "link").symlink_to(here / "elsewhere")
    (here / "elsewhere" / "loop").symlink_to(here / "engine")
    lines = ["import sys, engine", "sys.path.append('lib')", "import added", "STEP = 'steps.py:form'"]
    (here / "mine.py").write_text("\n".join(lines))
    before = digest("mine.py:kernel")
    (here / changed).write_text("ROUNDS = 2\n")
    assert digest("mine.py:kernel") != before


def test_modules_beside_a_file_count_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "tables")
    before = digest("../mine.py:kernel")
    (here / "helper.py").write_text("ROUNDS = 2\n")
    assert digest("../mine.py:kernel") != before


def test_what_a_package_imports_from_another_counts(here: Path) -> None:
    before = digest("engine.parts:kernel")
    (here / "far.py").write_text("ROUNDS = 2\n")
    assert digest("engine.parts:kernel") != before


def test_what_is_installed_counts_by_its_version(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [path for path in trial.kernel_sources("mine.py:kernel") if "site-packages" in str(path)]
    monkeypatch.syspath_prepend(here)
    found = []
    for version in ("1.0", "1.0", "1.1"):
        (here / "faraway-1.dist-info").mkdir(exist_ok=True)
        (here / "faraway-1.dist-info" / "METADATA").write_text(f"Name: faraway\nVersion: {version}\n")
        found.append(trial.toolchain()["versions"])
    assert found[0] == found[1] != found[2]


def test_another_gpu_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(("one GPU", "another GPU", "one GPU", "another GPU"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: next(names))
    assert trial.toolchain("cuda") != trial.toolchain("cuda")
    assert trial.toolchain("sim") == trial.toolchain("sim")
