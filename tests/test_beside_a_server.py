# SPDX-License-Identifier: Apache-2.0
"""What captures, installed beside a server's packages: none of them changes, and the tests of capture pass.

The server's packages are stand-ins: wheels with the name and the version that the server pins. That of torch
lends the torch of this environment, so that programs run. The rest comes from the package index.
"""

from __future__ import annotations

import subprocess
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The stand-in of torch finds these in the environment of the tests.
LENT = ("torch", "torchgen", "functorch")
FINDER = """
import importlib.machinery, sys

class Lent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None and name in {names!r}:
            return importlib.machinery.PathFinder.find_spec(name, [{folder!r}])

sys.meta_path.append(Lent)
"""
LENT_VERSION = "tests/capture/test_provenance.py::test_versions_and_machine"
"""The torch that is lent has a version of its own."""
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
SERVER = {"torch": "2.14.0", "nvidia-cutlass-dsl": "4.8.0", "numba": "0.65.0"}
"""vLLM 0.33.0's pins of what gdnbench needs too, and numba, for the llvmlite that it needs."""
TESTS = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "psutil",
    "tensorstore",
    "transformers<6",
    "setuptools",
)


def stand_in(
    folder: Path, name: str, version: str, files: Mapping[str, str], requires: tuple[str, ...] = ()
) -> Path:
    """A wheel by the specification of binary distributions: metadata, and `files`."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    contents = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in contents.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{place},,\n" for place in (*contents, f"{info}/RECORD")))
    return path


def installed(python: Path) -> dict[str, str]:
    """Versions by distribution."""
    lines = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return dict(line.split("==", 1) for line in lines)


@pytest.mark.slow  # an environment of its own, and all tests of capture
@pytest.mark.timeout(3600)
def test_nothing_of_the_server_changes_and_captures_work(tmp_path: Path) -> None:
    finder = FINDER.format(names=LENT, folder=sysconfig.get_path("purelib"))
    torch = {"lent.py": finder, "lent.pth": "import lent\n"}
    wheels = [
        stand_in(tmp_path, "torch", SERVER["torch"], torch, TORCH_NEEDS),
        stand_in(tmp_path, "nvidia-cutlass-dsl", SERVER["nvidia-cutlass-dsl"], {}),
        stand_in(tmp_path, "numba", SERVER["numba"], {}, ("llvmlite==0.47.*",)),
    ]
    venv.create(tmp_path / "server", with_pip=True)
    python = tmp_path / "server" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *wheels, *TESTS], check=True)
    before = installed(python)
    assert before.items() >= SERVER.items()

    subprocess.run([*pip, "--editable", f"{ROOT}[capture]"], check=True)
    after = installed(python)
    assert after.keys() - before.keys() >= {"gdnbench", "zarr"}
    assert {name: after[name] for name in before} == before

    tests = [
        python,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "-m",
        "not slow",
        "tests/capture",
        "--deselect",
        LENT_VERSION,
    ]
    subprocess.run(tests, cwd=ROOT, check=True)
