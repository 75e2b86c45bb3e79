"""Every instruction test runs on each engine. Also puts this folder's helper modules in reach of its
tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["interpreter", "compiled"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine. Once the compiled engine is there, it is held to every test."""
    name: str = request.param
    if name == "compiled" and importlib.util.find_spec("gdnbench.sim.compiler.engine") is None:
        pytest.skip("the compiled engine is not built yet")
    return name
