# SPDX-License-Identifier: Apache-2.0
"""What is installed, under which names, and what importing it needs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from setuptools.config.pyprojecttoml import read_configuration

from tests.messages import wording

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
    if "\\nimport cutlass" in source:
        continue  # written in CuTe DSL: imported when it is compiled, by none of the others
    __import__(module.name)
from gdnbench.ops import operations
print(*operations())
import gdnbench.capture.runtime, gdnbench.capture.session
print("torch._dynamo" in sys.modules)
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
    """And a capture does not import torch's compiler, which takes a second."""
    result = python(BLOCKED, tmp_path)
    assert (result.stdout, result.stderr) == (
        "conv_decode conv_prefill gdn_decode gdn_prefill indexer_logits indexer_topk kda_decode kda_prefill"
        " swa_decode v4_compress v4_decode\nFalse\n",
        "",
    )


def requirements(*extras: str) -> dict[str, SpecifierSet]:
    """The versions that an installation with `extras` needs here, by distribution."""
    ranges: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, importlib.metadata.requires("gdnbench") or ()):
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            ranges[requirement.name] = ranges.get(requirement.name, SpecifierSet()) & requirement.specifier
    return ranges


@pytest.mark.parametrize(
    ("extra", "distribution", "fits", "does_not"),
    [
        ("capture", "torch", ("2.11.0", "2.13.1", "2.15.0"), ("2.10.2",)),
        ("sim", "torch", ("2.11.0", "2.13.1"), ("2.10.2", "2.14.0")),
        ("kernels", "nvidia-cutlass-dsl", ("4.8.1",), ("4.8.0", "4.8.2")),
        ("", "zarr", ("3.1.6", "3.2.0"), ("3.1.5",)),
    ],
)
def test_ranges(extra: str, distribution: str, fits: tuple[str, ...], does_not: tuple[str, ...]) -> None:
    wanted = requirements(extra)[distribution]
    assert all(version in wanted for version in fits)
    assert not any(version in wanted for version in does_not)


SERVERS = {
    "vLLM 0.33.0": {
        "torch": "2.14.0",
        "nvidia-cutlass-dsl": "4.8.0",
        "numba": "0.65.0",
        "llvmlite": "0.47.0",
        "numpy": "2.3.5",
        "apache-tvm-ffi": "0.1.11",
        "transformers": "5.20.2",
        "typer": "0.29.2",
        "rich": "15.0.0",
        "packaging": "26.4",
        "blake3": "1.0.11",
    },
    "SGLang 0.5.23": {
        "torch": "2.14.1",
        "nvidia-cutlass-dsl": "4.8.0",
        "numba": "0.65.1",
        "llvmlite": "0.47.0",
        "apache-tvm-ffi": "0.1.11",
        "transformers": "5.19.0",
    },
}
"""What the wheels of the servers pin, and some of what pip chose beside it. numba needs the llvmlite of its
own release."""


@pytest.mark.parametrize("server", SERVERS)
def test_what_captures_fits_beside_a_server(server: str) -> None:
    needed = requirements("capture")
    assert "torch" in needed
    for name, version in SERVERS[server].items():
        assert name not in needed or version in needed[name], f"{server} has {name} {version}"


@pytest.mark.parametrize("server", SERVERS)
def test_what_simulates_does_not(server: str) -> None:
    """Why it is an extra: so this test can fail."""
    needed, pins = requirements("sim", "kernels"), SERVERS[server]
    unfit = {name for name, version in pins.items() if name in needed and version not in needed[name]}
    assert unfit == {"torch", "llvmlite", "nvidia-cutlass-dsl"}


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cutlass", "cuda", "llvmlite", "ml_dtypes"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
sys.argv[0] = "gdnbench"
from gdnbench.cli.main import console_main
console_main()
"""
STORE = str(Path(__file__).resolve().parents[1] / "captures" / "prefill.zarr.zip")


def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("ls", STORE), "5 records, 1 process, capture store"),
        (("show", STORE, "0"), "record 0: gdn_prefill"),
        (("verify", STORE), "whole"),
        (("doctor",), "zarr"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_stores_are_read_without_torch(words: tuple[str, ...], printed: str) -> None:
    ran = without_torch(*words)
    assert ran.returncode == 0
    assert printed in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "words", [("diff", STORE, STORE), ("report", STORE, "-o", "report.html")], ids=lambda w: w[0]
)
def test_what_needs_torch_says_which_extra_brings_it(words: tuple[str, ...]) -> None:
    ran = without_torch(*words)
    assert (ran.returncode, ran.stdout) == (3, "")
    said = wording("missing.package", package="torch", extra="capture")
    assert re.fullmatch(f"gdnbench: {said}\n", ran.stderr)


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


def test_type_checkers_read_the_packages() -> None:
    """PEP 561: each has py.typed, and the wheel does."""
    root = Path(__file__).parent.parent
    with warnings.catch_warnings(action="ignore"):
        found = read_configuration(root / "pyproject.toml")
    for name, folder in (("gdnbench", "gdnbench"), ("gdnbench_kernels", "kernels/gdnbench_kernels")):
        assert (root / folder / "py.typed").is_file()
        assert "py.typed" in found["tool"]["setuptools"]["package-data"][name]


def test_each_source_names_its_licence() -> None:
    """In the first line, below `#!`, or where the text at its top ends: kernels, whose lines others cite."""
    root = Path(__file__).parent.parent
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    missing = []
    for name in listed.stdout.split("\0")[:-1]:
        file = root / name
        if file.suffix not in (".py", ".js", ".css", ".sh") or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8")
        top = text.split('"""')[2].partition("\n")[0] if text.startswith('"""') else text[:120]
        if text.strip() and "SPDX-License-Identifier: Apache-2.0" not in top:
            missing.append(name)
    assert not missing
