"""What is installed, under which names, and what importing it needs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import read_configuration

BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "cuda", "transformers"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
import pkgutil
import gdnbench_kernels
for module in pkgutil.walk_packages(gdnbench_kernels.__path__, "gdnbench_kernels."):
    source = module.module_finder.find_spec(module.name).loader.get_source(module.name)
    if "\\nimport cutlass\\n" in source:
        continue  # written in CuTe DSL: imported when it is compiled, by none of the others
    __import__(module.name)
from gdnbench.ops import operations
print(*operations())
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in `folder`, so that only what is installed can be imported."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )


def test_the_name_kernels_is_left_to_its_owner(tmp_path: Path) -> None:
    result = python("import importlib.util; print(importlib.util.find_spec('kernels'))", tmp_path)
    assert result.stdout == "None\n"


def test_kernel_packages_import_without_cutlass_cuda_or_transformers(tmp_path: Path) -> None:
    result = python(BLOCKED, tmp_path)
    assert (result.stdout, result.stderr) == ("gdn_decode gdn_prefill swa_decode\n", "")


@pytest.mark.parametrize(
    ("distribution", "fits", "does_not"),
    [
        ("torch", ("2.11.0", "2.13.1"), ("2.10.2", "2.14.0")),
        ("nvidia-cutlass-dsl", ("4.8.1",), ("4.8.0", "4.8.2")),
        ("zarr", ("3.1.6", "3.2.0"), ("3.1.5",)),
    ],
)
def test_ranges(distribution: str, fits: tuple[str, ...], does_not: tuple[str, ...]) -> None:
    wanted = next(
        requirement
        for requirement in map(Requirement, importlib.metadata.requires("gdnbench") or ())
        if requirement.name == distribution
    )
    assert all(version in wanted.specifier for version in fits)
    assert not any(version in wanted.specifier for version in does_not)


def test_every_package_is_found_and_the_start_up_line_is_there() -> None:
    root = Path(__file__).parent.parent
    listed = {name.replace(".", "/") for name in packages(root)}
    folders = {"gdnbench": root / "gdnbench", "gdnbench_kernels": root / "kernels" / "gdnbench_kernels"}
    found = {
        "/".join((name, *file.parent.relative_to(folder).parts))
        for name, folder in folders.items()
        for file in folder.rglob("__init__.py")
    }
    assert found == listed
    assert (root / "gdnbench_capture.pth").read_text().startswith("import os; os.environ.get(")


def packages(root: Path) -> list[str]:
    """What setuptools finds by pyproject.toml."""
    with warnings.catch_warnings(action="ignore"):  # of a part of its configuration that is not stable yet
        found = read_configuration(root / "pyproject.toml")
    names: list[str] = found["tool"]["setuptools"]["packages"]
    return names
