"""Wrapping named functions of modules, whenever those modules are imported.

Standard library only, and nothing of it that costs: this runs at the start of every captured Python process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

AfterImport = Callable[[ModuleType], None]

_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")


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
            if root in sys.stdlib_module_names or _not_the_programs():
                return None
            self._busy = True
            try:
                self._after_import = self._load()
            finally:
                self._busy = False
            loaded = sys.modules.get(fullname)
            if loaded is not None:
                return _of_loaded(loaded)
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
            # Finders of a kind that the import system still knows but for which there is no `find_spec` come
            # last: without us it would ask them in turn, and it still does if no other finder has the module.
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def _of_loaded(module: ModuleType) -> ModuleSpec:
    """For a module that loading our functions imported while the program's own import of it had begun.

    To run it again would make a second module of it, with classes and state of its own.
    """
    spec = ModuleSpec(module.__name__, _AlreadyLoaded(module))  # type: ignore[arg-type]
    # The import system takes the spec that it finds on the module before the one that it is given.
    module.__spec__ = spec
    return spec


class _AlreadyLoaded:
    """Loads a module by doing nothing, and gives its spec back."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _not_the_programs() -> bool:
    """Whether the interpreter is still starting, as other packages have start-up lines too, or a module of
    the standard library is half imported: `copy`, which `dataclasses` imports, tries one of Jython's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name == "site":
            return True
        if frame.f_code.co_name == "<module>" and isinstance(name, str) and _of_library(name, frame):
            return True
        frame = frame.f_back
    return False


def _of_library(module: str, frame: FrameType) -> bool:
    """By its place too: a program may have a `calendar` or a `profile` of its own."""
    known = module.partition(".")[0] in sys.stdlib_module_names
    return known and frame.f_code.co_filename.startswith((_LIBRARY, "<frozen "))


def _call_after_exec(spec: ModuleSpec, after_import: AfterImport) -> None:
    """The loader stays the very object that the import system made: others look at its type and methods.

    One that cannot be made to tell us is left alone; so are, by their name, other modules that share it.
    """
    loader, name = spec.loader, spec.name
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return

    def exec_then_patch(module: ModuleType) -> None:
        exec_module(module)
        if getattr(module, "__name__", None) == name:
            after_import(module)

    with contextlib.suppress(AttributeError, TypeError):
        loader.exec_module = exec_then_patch  # type: ignore[method-assign, union-attr]


def install(finder: CaptureFinder) -> None:
    # First: other finders that hand out their own loaders must not hide a target.
    sys.meta_path.insert(0, finder)


def remove(finder: CaptureFinder) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
