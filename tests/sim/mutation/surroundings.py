# SPDX-License-Identifier: Apache-2.0
"""What a process that calls a subject finds around it: other people's packages change CuTe DSL for all of a
process, and are told the architecture by its environment."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

THIRD_PARTY = "GDNBENCH_THIRD_PARTY"
PACKAGES = ("quack", "flashinfer")


def installed(name: str) -> bool:
    """Whether the package of the subject is; if not, that is said."""
    package = next((package for package in PACKAGES if name.startswith(package)), None)
    folder = os.environ.get(THIRD_PARTY)
    if package is None or PathFinder.find_spec(package, [*([folder] if folder else []), *sys.path]):
        return True
    print(f"note: {name} is passed over: {package} is not installed", file=sys.stderr)
    return False


def environment(architecture: str) -> dict[str, str]:
    """Of the process that calls a subject of this architecture."""
    found = {**os.environ, "OMP_NUM_THREADS": "1"}
    if architecture:
        folders = [os.environ[each] for each in (THIRD_PARTY, "PYTHONPATH") if os.environ.get(each)]
        found |= {
            "CUTE_DSL_ARCH": architecture,
            "QUACK_ARCH": architecture,
            "QUACK_CACHE_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(folders),
        }
    return found
