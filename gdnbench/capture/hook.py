# SPDX-License-Identifier: Apache-2.0
"""The import hook: wraps named functions of modules when the program imports those modules.

Uses only cheap parts of the standard library, because it runs at the start of every captured Python process.
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
    """A meta-path finder that calls a function on each named module after each execution (import or reload).

    `load` returns the functions by module name. The finder calls it at the program's first import from
    outside the standard library, so that a process which only does a shell's work pays nothing. `load` must
    not raise.
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
            # A finder without `find_spec` is skipped. If no other finder has the module, the import system
            # still asks it after us.
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def _of_loaded(module: ModuleType) -> ModuleSpec:
    """A spec for a module that `load` imported while the program's own import of it was under way.

    Executing it again would make a second module, with classes and state of its own.
    """
    spec = ModuleSpec(module.__name__, _AlreadyLoaded(module))  # type: ignore[arg-type]
    # The import system prefers the spec on the module to the one that a finder returns.
    module.__spec__ = spec
    return spec


class _AlreadyLoaded:
    """A loader that returns an already loaded module and restores its spec."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _not_the_programs() -> bool:
    """Whether the current import is not the program's own.

    True while the interpreter starts (other packages have .pth files too), and while a module of the standard
    library is half imported: `copy`, which `dataclasses` imports, tries to import a Jython module.
    """
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
    """Whether `module` is the standard library's: by name and by file, since a program may have its own
    `calendar`."""
    known = module.partition(".")[0] in sys.stdlib_module_names
    return known and frame.f_code.co_filename.startswith((_LIBRARY, "<frozen "))


def _call_after_exec(spec: ModuleSpec, after_import: AfterImport) -> None:
    """Call `after_import` after the loader executes the module, by replacing `exec_module` on the loader
    object.

    The loader stays the object that the import system made, because other code looks at its type and methods.
    A loader that does not allow the replacement is left alone. Other modules that share the loader are told
    apart by name.
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


def install_finder(finder: CaptureFinder) -> None:
    # First, because other finders that return their own loaders must not hide a target.
    sys.meta_path.insert(0, finder)


def remove_finder(finder: CaptureFinder) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
