# SPDX-License-Identifier: Apache-2.0
"""Every instruction test runs on each engine."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
V3 = "compiled-v3"


@pytest.fixture(params=["interpreter", "compiled", V3])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of an engine; each one is held to every test. `compiled-v3` is the compiled engine, which
    compiles for a CPU without AVX-512."""
    if request.param == V3:
        request.getfixturevalue("as_cpu")("x86-64-v3")
        return "compiled"
    name: str = request.param
    return name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Default runs keep the first `compiled-v3` case of each test; the others are slow."""
    begun = set()
    for item in items:
        if not isinstance(item, pytest.Function) or FOLDER not in item.path.parents:
            continue
        if not hasattr(item, "callspec") or item.callspec.params.get("engine") != V3:
            continue
        if (item.path, item.originalname) in begun:
            item.add_marker(pytest.mark.slow)
        begun.add((item.path, item.originalname))
