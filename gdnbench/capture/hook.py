"""Wrapping named functions of modules, whenever those modules are imported.

Standard library only, and nothing of it that costs: this runs at the start of every captured Python process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

AfterImport = Callable[[ModuleType], None]


class CaptureFinder:
    """A meta-path finder that has a function called on each named module once it was executed (and reloaded).

    `load` gives the modules and their functions. It is asked at the program's first import from outside the
    standard library, so that a process that only does a shell's work pays for nothing. It must not raise.
    """

    def __init__(self, load: Callable[[], Mapping[str, AfterImport]]) -> None:
        self._load = load
        self._after_import: Mapping[str, AfterImport] | None = None
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._busy:
            return None
        if self._after_import is None:
            root = fullname.partition(".")[0]
            if root in sys.stdlib_module_names or _in_start_up():
                return None
            self._busy = True
            try:
                self._after_import = self._load()
            finally:
                self._busy = False
        after_import = self._after_import.get(fullname)
        if after_import is None:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _call_after_exec(spec, after_import)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def _in_start_up() -> bool:
    """Whether the interpreter is still starting: other packages have start-up lines too, and some import."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "site":
            return True
        frame = frame.f_back
    return False


def _call_after_exec(spec: ModuleSpec, after_import: AfterImport) -> None:
    """The loader stays the very object that the import system made: others look at its type and methods."""
    loader = spec.loader
    assert loader is not None
    exec_module = loader.exec_module

    def exec_then_patch(module: ModuleType) -> None:
        exec_module(module)
        after_import(module)

    loader.exec_module = exec_then_patch  # type: ignore[method-assign]


def install(finder: CaptureFinder) -> None:
    # First: other finders that hand out their own loaders must not hide a target.
    sys.meta_path.insert(0, finder)


def remove(finder: CaptureFinder) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
