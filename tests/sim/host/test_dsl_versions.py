# SPDX-License-Identifier: Apache-2.0
"""The simulator takes what other releases of CuTe DSL compile: 4.5 to 4.8.1.

GDNBENCH_CUTE_DSLS names a folder with a folder for each release, which `pip install --no-deps --target`
filled with nvidia-cutlass-dsl, -libs-base, and from 4.6 on -libs-core and -libs-cu12.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.host.dsl_version_program import WAYS

FOLDER = "GDNBENCH_CUTE_DSLS"
ROOT = Path(__file__).parents[3]
RELEASES = sorted(
    packages
    for folder in Path(os.environ.get(FOLDER, "/nonexistent")).glob("*/nvidia_cutlass_dsl")
    for packages in (folder / "dsl_packages", folder / "python_packages")
    if packages.is_dir()
)


def run(*first: Path) -> list[str]:
    """The lines of the program, with these folders first on the path."""
    path = [*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.sim.host.dsl_version_program"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = [line for line in ran.stdout.splitlines() if line and not line.startswith("host code has")]
    assert ran.returncode == 0, f"after {', '.join(lines)}: {ran.stderr[-2000:]}"
    return lines


@pytest.mark.slow
@pytest.mark.skipif(not RELEASES, reason=f"{FOLDER} names no folder with releases of CuTe DSL")
@pytest.mark.parametrize("packages", RELEASES, ids=lambda packages: packages.parents[1].name)
def test_a_release(packages: Path) -> None:
    release, *ways = run(packages, packages.parents[1])
    assert ways == [way.__name__ for way in WAYS]
    assert list(packages.parents[1].glob(f"nvidia_cutlass_dsl-{release}.dist-info"))


@pytest.mark.slow  # its parts run in the other tests of this folder
def test_the_installed_release() -> None:
    assert run()[1:] == [way.__name__ for way in WAYS]
