"""Every instruction test runs on each engine. Also puts this folder's helper modules in reach of its
tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["interpreter", "compiled"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine; both are held to every test."""
    name: str = request.param
    return name
