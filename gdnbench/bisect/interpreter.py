# SPDX-License-Identifier: Apache-2.0
"""What an interpreter is and has: the version, its folders of packages, and their versions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from gdnbench.errors import BadInputError

_ASK = """
import importlib.metadata as m, json, platform, re, site, sys, sysconfig
found = [d for d in reversed(list(m.distributions())) if d.name]
names = {re.sub("[-_.]+", "-", d.name).lower(): d.version for d in found}
sites = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
print(json.dumps({"version": platform.python_implementation() + " " + platform.python_version(),
                  "platform": sysconfig.get_platform(), "sites": sites, "packages": names}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    python: str
    version: str
    platform: str
    sites: tuple[str, ...]
    packages: Mapping[str, str]


@cache
def interpreter(python: str) -> Interpreter:
    """BadInputError if `python` is none that runs."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        raise BadInputError(f"{python} is no Python that runs here") from None
    return Interpreter(
        python, found["version"], found["platform"], tuple(found["sites"]), dict(found["packages"])
    )
