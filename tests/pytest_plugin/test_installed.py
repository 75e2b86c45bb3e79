# SPDX-License-Identifier: Apache-2.0
"""The plugin as pytest finds it in an environment: by its entry point, at no cost to who does not use it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("torch", "numpy", "zarr", "rich", "typer", "gdnbench.errors", "gdnbench.store", "gdnbench_kernels")


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment whose pytest finds the entry points of pyproject.toml and no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["pytest11"].items()]
    about = tmp_path / "packages" / "asif-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: asif\nVersion: 1\n")
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    (about / "RECORD").write_text("gdnbench/__init__.py,,\ngdnbench_kernels/__init__.py,,\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(about.parent), str(ROOT)])}


def python(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


def test_who_does_not_use_it_imports_nothing(tmp_path: Path, installed: dict[str, str]) -> None:
    (tmp_path / "test_x.py").write_text(
        "import sys\n"
        "def test_x(request):\n"
        "    assert request.config.pluginmanager.has_plugin('gdnbench')\n"
        f"    assert [name for name in {HEAVY} if name in sys.modules] == []\n"
    )
    others = {one.name for one in importlib.metadata.entry_points(group="pytest11")} - {"gdnbench"}
    without = [word for name in sorted(others) for word in ("-p", f"no:{name}")]  # zarr's imports zarr
    ran = python(tmp_path, installed, "-m", "pytest", "-W", "error", *without, "test_x.py")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_it_can_be_switched_off(tmp_path: Path, installed: dict[str, str]) -> None:
    ran = python(tmp_path, installed, "-m", "pytest", "-p", "no:gdnbench", "--help")
    assert ran.returncode == 0
    assert "--gdnbench" not in ran.stdout


def test_an_import_ahead_of_pytest_is_no_warning(tmp_path: Path, installed: dict[str, str]) -> None:
    """pytest rewrites the assertions of all that is installed with a plugin. `GDNBENCH_CAPTURE=STORE pytest`
    comes before it."""
    (tmp_path / "test_x.py").write_text("def test_x(): pass\n")
    code = "import gdnbench, gdnbench_kernels, pytest; pytest.console_main()"
    ran = python(tmp_path, installed, "-c", code, "-W", "error", "test_x.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
