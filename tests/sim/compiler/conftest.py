"""Puts this folder's program generator in reach of its tests, and keeps compiled kernels apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test compiles anew: a cache entry of another run would hide what is tested."""
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
