# SPDX-License-Identifier: Apache-2.0
"""The hook that shows the virtual GPU to a library once it is imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gdnbench.sim.virtual.import_hook import ImportHook, add_hook, hooked, is_loaded, remove_hook


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `virtual_outer` that imports its module `inner`."""
    folder = tmp_path / "virtual_outer"
    folder.mkdir()
    (folder / "__init__.py").write_text("import virtual_outer.inner\nDONE = True\n")
    (folder / "inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("virtual_outer", "virtual_outer.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder.name


def test_a_module_is_told_of_once_it_is_executed(package: str) -> None:
    told: list[str] = []

    def note(module: ModuleType) -> None:
        told.append(module.__name__)
        assert is_loaded(module.__name__)
        if module.__name__.endswith("inner"):
            assert not is_loaded(package)

    with hooked({package: note, f"{package}.inner": note}):
        assert importlib.import_module(package).DONE
    assert set(told) == {package, f"{package}.inner"}
    assert told[-1] == package


def test_a_hook_that_takes_anothers_place_is_told_of_imports_under_way(package: str) -> None:
    told: list[str] = []
    with hooked({}) as second, hooked({package: lambda module: None}):

        def replace(module: ModuleType) -> None:
            second.after_import[package] = lambda outer: told.append(outer.__name__)

        with hooked({f"{package}.inner": replace}):
            importlib.import_module(package)
    assert told == [package]


def test_nothing_is_told_after_the_block(package: str) -> None:
    told: list[str] = []
    with hooked({package: lambda module: told.append(module.__name__)}):
        pass
    importlib.import_module(package)
    assert told == []


def test_a_call_waits_for_the_modules_that_it_would_import(package: str, tmp_path: Path) -> None:
    """As `gdnbench sim -- python program.py`, which imports gdnbench.sim.simulate before torch."""
    (tmp_path / package / "inner.py").write_text("import virtual_library\n")
    (tmp_path / "virtual_library.py").write_text("")
    told: list[bool] = []

    def note(module: ModuleType) -> None:
        told.append(hasattr(sys.modules[package], "DONE"))

    hook = ImportHook({"virtual_library": note}, outside=package)
    add_hook(hook)
    try:
        importlib.import_module(package)
        assert told == [True]
        importlib.reload(sys.modules["virtual_library"])
    finally:
        remove_hook(hook)
        del sys.modules["virtual_library"]
    assert told == [True, True]
