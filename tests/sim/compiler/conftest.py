"""Each test of the compiler has a compile cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test compiles anew: a cache entry of another run would hide what is tested."""
    monkeypatch.setenv("GDNBENCH_CACHE_DIR", str(tmp_path))
