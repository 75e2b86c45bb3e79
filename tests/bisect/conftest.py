"""What tests of this folder, which is no package, have of the modules in it that are no tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def beside() -> Callable[[str], ModuleType]:
    """A module of this folder by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(
            f"bisect_{name}", Path(__file__).with_name(f"{name}.py")
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
