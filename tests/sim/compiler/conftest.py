# SPDX-License-Identifier: Apache-2.0
"""Each test of the compiler has a compile cache of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gdnbench.sim.compiler import optimiser


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test compiles anew: a cache entry of another run would hide what is tested."""
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def _no_launch_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any launch may take a second."""
    monkeypatch.setattr(optimiser, "LEAST_SECONDS", math.inf)
